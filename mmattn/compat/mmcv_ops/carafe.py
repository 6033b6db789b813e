"""CARAFE, upsampling by predicted kernels, with the arguments of mmcv's operators.

Shapes: B batch, C channels, H W height and width of the features, K side of the
kernels, S scale factor, G groups of channels.

Each low-resolution pixel yields S * S outputs, which read the same K x K window. With
channels last, K neighbors in a row are a (K, C) matrix in memory, the next pixel's
starts C elements later. So one batched product per row of the window needs no copy
of the windows. The batch runs over the rows of the padded map; what it computes in the
padding is dropped.
"""

import torch
from torch.nn import functional as F

from . import widen


def _padded(features, radius):
    """Return the features, zero-padded and with channels last."""
    features = F.pad(widen(features), [radius] * 4)
    return features.permute(0, 2, 3, 1).contiguous()


def _window_rows(padded, row, kernel_size, group_size, batch):
    """Yield views of shape (T, K, C / G), one for each image and group.

    Window t starts at position t of the padded map, `row` rows further down.
    """
    B, _, width, C = padded.shape
    channels = C // group_size
    shape, strides = (batch, kernel_size, channels), (C, C, 1)
    for b in range(B):
        for g in range(group_size):
            start = b * padded.stride(0) + row * width * C + g * channels
            yield padded.as_strided(shape, strides, start)


def _rows_of_kernels(masks, kernel_size, group_size, scale_factor):
    """Return the kernels, shape (K, B * G, H * (W + K - 1), S * S, K), by row."""
    K, S, (H, W) = kernel_size, scale_factor, masks.shape[2:]
    masks = widen(masks).unflatten(1, (group_size, K, K))
    masks = masks.unflatten(4, (H // S, S)).unflatten(6, (W // S, S))
    masks = masks.permute(2, 0, 1, 4, 6, 5, 7, 3)  # (K, B, G, H, W, S, S, K)
    masks = F.pad(masks, (0, 0, 0, 0, 0, 0, 0, K - 1))
    return masks.flatten(5, 6).flatten(3, 4).flatten(1, 2)


def _maps_to_windows(maps, group_size, scale_factor, padding):
    """Return maps of the output's shape as (B * G, H * (W + padding), S * S, C / G)."""
    S, (C, H, W) = scale_factor, maps.shape[1:]
    maps = widen(maps).unflatten(1, (group_size, C // group_size))
    maps = maps.unflatten(3, (H // S, S)).unflatten(5, (W // S, S))
    maps = maps.permute(0, 1, 3, 5, 4, 6, 2)  # (B, G, H, W, S, S, C / G)
    maps = F.pad(maps, (0, 0, 0, 0, 0, 0, 0, padding))
    return maps.flatten(4, 5).flatten(2, 3).flatten(0, 1)


def carafe_forward(
    features,
    masks,
    rfeatures,
    routput,
    rmasks,
    output,
    kernel_size,
    group_size,
    scale_factor,
):
    """Write the upsampled features into `output`.

    Args:
        features: shape (B, C, H, W).
        masks: shape (B, G * K * K, S * H, S * W), the kernel of each output pixel.
        rfeatures: shape (B, C, H, W), written: mmcv keeps it for the gradient.
        routput, rmasks: mmcv's scratch space; ignored.
        output: shape (B, C, S * H, S * W), written.
    """
    rfeatures.copy_(features)
    B, C, H, W = features.shape
    S, padding = scale_factor, kernel_size - 1
    padded = _padded(features, padding // 2)
    kernels = _rows_of_kernels(masks, kernel_size, group_size, S)
    count = H * (W + padding) - padding
    shape = B * group_size, H * (W + padding), S * S, C // group_size
    windows = padded.new_zeros(shape)
    for row, of_row in enumerate(kernels):
        inputs = _window_rows(padded, row, kernel_size, group_size, count)
        for result, kernel, x in zip(windows, of_row, inputs, strict=True):
            result[:count].baddbmm_(kernel[:count], x)
    windows = windows.view(B, group_size, H, W + padding, S, S, shape[-1])
    maps = windows[:, :, :, :W].permute(
        0, 1, 6, 2, 4, 3, 5
    )  # (B, G, C / G, H, S, W, S)
    output.copy_(maps.reshape(output.shape))


def carafe_backward(
    grad_output,
    rfeatures,
    masks,
    rgrad_output,
    rgrad_input_hs,
    rgrad_input,
    rgrad_masks,
    grad_input,
    grad_masks,
    kernel_size,
    group_size,
    scale_factor,
):
    """Write the gradients of features and masks; see `carafe_forward`.

    Args:
        rgrad_output, rgrad_input_hs, rgrad_input, rgrad_masks: mmcv's scratch space;
            ignored.
    """
    B, C, H, W = rfeatures.shape
    K, S, padding = kernel_size, scale_factor, kernel_size - 1
    padded = _padded(rfeatures, padding // 2)
    kernels = _rows_of_kernels(masks, K, group_size, S)
    grads = _maps_to_windows(grad_output, group_size, S, padding)
    count = H * (W + padding) - padding
    grad_padded, grad_kernels = torch.zeros_like(padded), torch.zeros_like(kernels)
    for row in range(K):
        pieces = zip(
            grads[:, :count],
            kernels[row, :, :count],
            grad_kernels[row, :, :count],
            _window_rows(padded, row, K, group_size, count),
            _window_rows(grad_padded, row, K, group_size, count),
            strict=True,
        )
        for grad, kernel, grad_kernel, x, grad_x in pieces:
            torch.bmm(grad, x.mT, out=grad_kernel)
            grad_window = torch.bmm(kernel.mT, grad)  # (T, K, C / G)
            for column in range(K):
                grad_x[:, column] += grad_window[:, column]
    radius = padding // 2
    grad_features = grad_padded[:, radius : radius + H, radius : radius + W]
    grad_input.copy_(grad_features.permute(0, 3, 1, 2))
    shape = K, B, group_size, H, W + padding, S, S, K
    grad_kernels = grad_kernels.view(shape)[:, :, :, :, :W]
    grad_kernels = grad_kernels.permute(1, 2, 0, 7, 3, 5, 4, 6)
    grad_masks.copy_(grad_kernels.reshape(grad_masks.shape))
