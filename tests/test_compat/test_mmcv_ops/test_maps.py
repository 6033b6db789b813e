"""Operators on maps through mmcv's functions, against loops over pixels."""

from itertools import product

import pytest
import torch
from mmcv import ops as mmcv_ops
from same_results import assert_same
from torch import distributed
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures('our_ops')


# Kernel, groups, scale, and shape of the features.
CASES = {
    'usual': (5, 1, 2, (2, 4, 4, 3)),
    'groups': (3, 2, 2, (1, 6, 3, 5)),
    'kernel-1': (1, 2, 3, (2, 2, 2, 3)),
    'scale-1': (3, 1, 1, (1, 2, 4, 4)),
    'one-pixel': (5, 1, 2, (1, 3, 1, 1)),
}


def carafe_inputs(kernel, groups, scale, shape):
    generator = torch.Generator().manual_seed(0)
    B, _, H, W = shape
    mask_shape = B, groups * kernel**2, scale * H, scale * W
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_()
        for s in (shape, mask_shape)
    ]


def loop_carafe(features, masks, kernel, groups, scale):
    B, C, H, W = features.shape
    rows = []
    for b, c, y, x in product(*map(range, (B, C, scale * H, scale * W))):
        group, total = c // (C // groups), features.new_zeros(())
        for i, j in product(range(kernel), repeat=2):
            v = y // scale + i - kernel // 2
            u = x // scale + j - kernel // 2
            if 0 <= v < H and 0 <= u < W:
                k = (group * kernel + i) * kernel + j
                total = total + masks[b, k, y, x] * features[b, c, v, u]
        rows.append(total)
    return torch.stack(rows).view(B, C, scale * H, scale * W)


@pytest.mark.parametrize(
    ('kernel', 'groups', 'scale', 'shape'), CASES.values(), ids=CASES
)
def test_carafe(kernel, groups, scale, shape):
    x = carafe_inputs(kernel, groups, scale, shape)
    output = mmcv_ops.carafe(*x, kernel, groups, scale)
    expected = loop_carafe(*x, kernel, groups, scale)
    assert_same(output, expected, x)


# Height and width of the mask and of the features.
MASKS_OF = {
    'as-large-as-any': (7, 9, 4, 5),
    'smaller': (3, 3, 4, 5),
    'larger': (9, 11, 2, 3),
    'mixed': (3, 9, 4, 2),
    'even': (4, 2, 3, 4),
    'one-pixel': (3, 1, 1, 1),
}


def loop_psa_mask(masks, kind, size):
    B, _, H, W = masks.shape
    half_h, half_w = (size[0] - 1) // 2, (size[1] - 1) // 2
    output = torch.zeros(B, H * W, H, W, dtype=masks.dtype)
    for h, w, i, j in product(*map(range, (H, W, *size))):
        y, x = h + i - half_h, w + j - half_w
        if 0 <= y < H and 0 <= x < W:
            element = masks[:, i * size[1] + j, h, w]
            if kind == 'collect':
                output[:, y * W + x, h, w] = element
            else:
                output[:, h * W + w, y, x] = element
    return output


@pytest.mark.parametrize('kind', ['collect', 'distribute'])
@pytest.mark.parametrize('case', MASKS_OF.values(), ids=MASKS_OF)
def test_psa_mask(case, kind):
    generator = torch.Generator().manual_seed(0)
    size, (H, W) = case[:2], case[2:]
    shape = 2, size[0] * size[1], H, W
    masks = torch.randn(shape, generator=generator, dtype=torch.float64)
    masks.requires_grad_()
    output = mmcv_ops.PSAMask(kind, size)(masks)
    expected = loop_psa_mask(masks, kind, size)
    assert_same(output, expected, masks, rtol=0, atol=0)


THRESHOLDS = {'some': 0.6, 'one': 0.98, 'none': 2.0}


@pytest.mark.parametrize('threshold', THRESHOLDS.values(), ids=THRESHOLDS)
@pytest.mark.parametrize('kernel', [(1, 1), (3, 5)], ids=str)
def test_masked_conv(kernel, threshold):
    generator = torch.Generator().manual_seed(0)
    padding = kernel[0] // 2, kernel[1] // 2
    layer = mmcv_ops.MaskedConv2d(3, 4, kernel, padding=padding).double()
    x = torch.randn(1, 3, 5, 7, generator=generator, dtype=torch.float64)
    mask = (torch.rand(1, 5, 7, generator=generator) > threshold).double()
    expected = F.conv2d(x, layer.weight, layer.bias, padding=layer.padding) * mask
    with torch.no_grad():
        torch.testing.assert_close(layer(x, mask), expected)


@pytest.fixture
def process_group():
    """Starts the group that mmcv's layer asks for its size."""
    distributed.init_process_group(
        'gloo', store=distributed.HashStore(), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize('mode', ['default', 'N'])
@pytest.mark.parametrize('shape', [(3, 4, 5, 2), (1, 4, 1, 1)], ids=str)
def test_sync_bn(process_group, shape, mode):
    layer = mmcv_ops.SyncBatchNorm(4, momentum=0.3, eps=0.1, stats_mode=mode)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = (torch.randn(shape) * 2 + 1).requires_grad_()
    channels = x.transpose(0, 1).flatten(1)
    mean, variance = channels.mean(1), channels.var(1, unbiased=False)
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
    assert_same(output, expected, inputs, rtol=1e-4, atol=1e-5)


def test_sync_bn_of_an_empty_batch(process_group):
    layer = mmcv_ops.SyncBatchNorm(4, stats_mode='N')
    before = layer.running_mean.clone(), layer.running_var.clone()
    x = torch.randn(0, 4, 3, requires_grad=True)
    output = layer(x)
    assert output.shape == x.shape
    torch.testing.assert_close((layer.running_mean, layer.running_var), before)
    grads = torch.autograd.grad(output.sum(), (layer.weight, layer.bias))
    assert not any(grad.any() for grad in grads)
