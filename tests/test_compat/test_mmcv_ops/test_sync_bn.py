"""mmcv's synchronized batch normalization in one process, against PyTorch's layer."""

import pytest
import torch
from torch import distributed, nn

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')


@pytest.fixture
def process_group():
    """Starts the group that mmcv's layer asks for its size."""
    distributed.init_process_group(
        'gloo', store=distributed.HashStore(), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize('mode', ['default', 'N'])
@pytest.mark.parametrize('shape', [(3, 4, 5, 2), (3, 4, 1), (1, 4, 1, 1)], ids=str)
def test_sync_bn(process_group, shape, mode):
    layer = mmcv_ops.SyncBatchNorm(4, momentum=0.3, eps=0.1, stats_mode=mode)
    x = (torch.randn(shape) * 2 + 1).requires_grad_()
    mean, variance = (
        f(x.transpose(0, 1).flatten(1))
        for f in (lambda x: x.mean(1), lambda x: x.var(1, unbiased=False))
    )
    by_channel = 1, 4, *[1] * (len(shape) - 2)
    normal = (x - mean.view(by_channel)) / (variance + 0.1).sqrt().view(by_channel)
    expected = normal * layer.weight.view(by_channel) + layer.bias.view(by_channel)
    output = layer(x)
    torch.testing.assert_close(output, expected)
    count = x.numel() // 4
    unbiased = variance * count / max(count - 1, 1)
    torch.testing.assert_close(layer.running_mean, 0.3 * mean)
    torch.testing.assert_close(layer.running_var, 0.7 + 0.3 * unbiased)
    inputs = x, layer.weight, layer.bias
    direction = torch.randn(shape)
    torch.testing.assert_close(
        torch.autograd.grad(output, inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
        rtol=1e-4,
        atol=1e-5,
    )


def test_sync_bn_of_an_empty_batch(process_group):
    layer = mmcv_ops.SyncBatchNorm(4, stats_mode='N')
    before = layer.running_mean.clone(), layer.running_var.clone()
    x = torch.randn(0, 4, 3, requires_grad=True)
    output = layer(x)
    assert output.shape == x.shape
    torch.testing.assert_close((layer.running_mean, layer.running_var), before)
    grads = torch.autograd.grad(output.sum(), (layer.weight, layer.bias))
    assert not any(grad.any() for grad in grads)


def test_sync_bn_in_half_precision(process_group):
    layer, peer = mmcv_ops.SyncBatchNorm(4), nn.BatchNorm1d(4)
    peer.load_state_dict(layer.state_dict())
    x = torch.randn(6, 4, 3).half()
    output = layer(x)
    assert output.dtype == torch.float16
    torch.testing.assert_close(output, peer(x.float()).half())
