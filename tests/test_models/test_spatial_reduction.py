"""The reduction of `SpatialReductionAttention` is its convolution, on every path."""

import pytest
import torch
import torch.nn.functional as F
from export_checks import OnnxSession
from layer_checks import assert_same
from refusals import refuses

from mmattn.models.layers import (
    LinearSpatialReductionAttention,
    SpatialReductionAttention,
    spatial_reduction_attention,
)
from tools.benchmark.tolerances import assert_close


def make(sr_ratio, shape=(2, 9, 6)):
    torch.manual_seed(0)
    return SpatialReductionAttention(8, 2, sr_ratio), torch.randn(*shape, 8)


@pytest.fixture
def products(monkeypatch):
    """Imitate a BLAS as fast as oneDNN, and count the reductions by products."""
    function, calls = spatial_reduction_attention._convolve_patches, []

    def count(*args):
        calls.append(1)
        return function(*args)

    monkeypatch.setattr(spatial_reduction_attention, '_convolve_patches', count)
    monkeypatch.setattr(spatial_reduction_attention, 'NARROW_BLAS', False)
    return calls


@pytest.mark.parametrize(
    'sr_ratio, shape', [(2, (2, 9, 6)), (3, (1, 12, 24)), (4, (2, 3, 8))]
)
def test_reduction_and_its_gradients(sr_ratio, shape, products):
    layer, x = make(sr_ratio, shape)
    layer.forward = layer.reduce
    pad = max(0, sr_ratio - shape[1])

    def ours(x, weight, bias):
        parameters = {'sr.weight': weight, 'sr.bias': bias}
        return torch.func.functional_call(layer, parameters, (x,))

    def convolution(x, weight, bias):
        maps = F.pad(x, (0, 0, 0, 0, 0, pad)).permute(0, 3, 1, 2)
        maps = F.conv2d(maps, weight, bias, stride=sr_ratio)
        return F.layer_norm(maps.permute(0, 2, 3, 1), (8,))

    assert_same(convolution, ours, [x, layer.sr.weight, layer.sr.bias])
    assert products


def test_product_only_where_it_is_faster(monkeypatch, products):
    layer, x = make(2)
    layer(x)
    assert products.pop()
    with torch.no_grad():
        layer(x)
    layer.sr.requires_grad_(False)
    layer(x)
    layer.sr.requires_grad_()
    with torch.autocast('cpu', torch.bfloat16):
        layer(x)
    layer.double()(x.double())
    torch.compile(layer.float(), fullgraph=True, backend='aot_eager')(x)
    torch.jit.trace(layer, x)
    make(5)[0](x)
    monkeypatch.setattr(spatial_reduction_attention, 'NARROW_BLAS', True)
    layer(x)
    assert not products


def test_linear_attention_of_any_size_in_onnx_runtime():
    """PyTorch's pooling would be written with the bins of the example's size."""
    torch.manual_seed(0)
    layer, sides = LinearSpatialReductionAttention(8, 2).eval(), (1, 2)
    dynamic = (dict.fromkeys(sides, torch.export.Dim.DYNAMIC),)
    session = OnnxSession(layer, (torch.randn(1, 20, 31, 8),), dynamic)
    for grid in ((20, 31), (9, 50), (33, 6)):
        x = torch.randn(1, *grid, 8)
        with torch.no_grad():
            assert_close('out', layer(x), session(x)[0])


test_heads_that_do_not_divide_channels = refuses(
    SpatialReductionAttention, ((8, 3), 'multiple of num_heads, got 8 and 3')
)
