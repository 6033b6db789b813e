"""The local steps of mmcv's synchronized batch normalization.

mmcv exchanges the statistics between the steps, so these functions see the batch of one
process. Shapes: B batch, C channels, S pixels. Statistics are float32.
"""


def _by_channel(statistic):
    return statistic[:, None]  # (C, 1)


def sync_bn_forward_mean(input, mean):
    """Write the mean of each channel of `input`, shape (B, C, S)."""
    mean.copy_(input.float().mean((0, 2)))


def sync_bn_forward_var(input, mean, var):
    """Write the mean squared distance from `mean`, which comes from all processes."""
    var.copy_((input.float() - _by_channel(mean)).square().mean((0, 2)))


def sync_bn_forward_output(
    input,
    mean,
    var,
    weight,
    bias,
    running_mean,
    running_var,
    norm,
    std,
    output,
    eps,
    momentum,
    group_size,
):
    """Write the normalized input, and update the running statistics in place.

    Args:
        input: shape (B, C, S).
        mean, var, weight, bias, running_mean, running_var: shape (C,).
        norm: shape (B, C, S), written: the input before weight and bias.
        std: shape (C,), written.
        output: shape (B, C, S), written.
        momentum: weight of the new statistics, a number or a tensor of one.
        group_size: number of processes, each with as many elements as `input`.
    """
    std.copy_((var + eps).sqrt())
    norm.copy_((input.float() - _by_channel(mean)) / _by_channel(std))
    output.copy_(norm * _by_channel(weight) + _by_channel(bias))
    count = input.size(0) * input.size(2) * group_size
    unbiased = var * count / (count - 1) if count > 1 else var
    for running, new in ((running_mean, mean), (running_var, unbiased)):
        running.copy_(momentum * new + (1 - momentum) * running)


def sync_bn_backward_param(grad_output, norm, grad_weight, grad_bias):
    """Write the gradients of weight and bias, shape (C,), of one process."""
    grad = grad_output.float()
    grad_weight.copy_((grad * norm).sum((0, 2)))
    grad_bias.copy_(grad.sum((0, 2)))


def sync_bn_backward_data(
    grad_output, weight, grad_weight, grad_bias, norm, std, grad_input
):
    """Write the input gradient; `grad_weight` and `grad_bias` are averages."""
    count = norm.size(0) * norm.size(2)
    shared = norm * _by_channel(grad_weight) + _by_channel(grad_bias)
    scale = _by_channel(weight / std)
    grad_input.copy_(scale * (grad_output.float() - shared / count))
