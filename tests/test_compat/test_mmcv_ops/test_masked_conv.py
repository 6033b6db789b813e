"""Masked convolution through mmcv's own layer, against a convolution and a mask."""

import pytest
import torch
from torch.nn import functional as F

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

MASKS = {'some': 0.6, 'one': 0.98, 'all': -1.0, 'none': 2.0}


def layer_and_inputs(kernel, padding, threshold, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    layer = mmcv_ops.MaskedConv2d(3, 4, kernel, padding=padding).to(dtype)
    x = torch.randn(1, 3, 5, 7, generator=generator, dtype=torch.float64).to(dtype)
    mask = (torch.rand(1, 5, 7, generator=generator) > threshold).to(dtype)
    return layer, x, mask


@pytest.mark.parametrize('threshold', MASKS.values(), ids=MASKS)
@pytest.mark.parametrize('kernel', [(1, 1), (3, 3), (3, 5)], ids=str)
def test_masked_conv(kernel, threshold):
    layer, x, mask = layer_and_inputs(
        kernel, (kernel[0] // 2, kernel[1] // 2), threshold
    )
    expected = F.conv2d(x, layer.weight, layer.bias, padding=layer.padding) * mask
    with torch.no_grad():
        torch.testing.assert_close(layer(x, mask), expected)


def test_masked_conv_on_channels_last():
    layer, x, mask = layer_and_inputs(3, 1, 0.5)
    with torch.no_grad():
        expected = layer(x, mask)
        x = x.to(memory_format=torch.channels_last)
        torch.testing.assert_close(layer(x, mask), expected)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_masked_conv_in_half_precision(dtype):
    layer, x, mask = layer_and_inputs(3, 1, 0.5, dtype)
    with torch.no_grad():
        out = layer(x, mask)
        expected = layer.double()(x.double(), mask)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected.to(dtype), rtol=2e-2, atol=2e-2)
