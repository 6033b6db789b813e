"""The layer of neighborhood attention: projections, padding, settings."""

import pytest
import torch
from refusals import refuses
from torch.testing import assert_close

from mmattn.models.layers import NeighborhoodAttention
from mmattn.ops.neighborhood_attention import neighborhood_attention_reference


@pytest.mark.parametrize('grid', [(1, 1), (3, 9)], ids=str)
def test_small_maps_are_padded_with_pixels_of_zeros(grid):
    torch.manual_seed(0)
    layer = NeighborhoodAttention(6, 2).double()
    H, W = grid
    x = torch.randn(2, H, W, 6, dtype=torch.float64)
    padded = torch.zeros(2, max(H, 7), max(W, 7), 6, dtype=torch.float64)
    padded[:, :H, :W] = x
    assert_close(layer(x), layer(padded)[:, :H, :W])
    assert layer(x).shape == x.shape


def test_layer_projects_heads_of_neighboring_channels():
    torch.manual_seed(0)
    layer = NeighborhoodAttention(6, 2).double()
    x = torch.randn(1, 8, 7, 6, dtype=torch.float64)
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).split(6, dim=-1)
    heads = (t.reshape(1, 8, 7, 2, 3) for t in (q, k, v))
    out = neighborhood_attention_reference(*heads, layer.rpb)
    assert_close(layer(x), layer.proj(out.flatten(3)))


def test_bfloat16_and_autocast():
    torch.manual_seed(0)
    layer = NeighborhoodAttention(8, 2)
    for grid in ((9, 9), (50, 42)):
        x = torch.randn(1, *grid, 8)
        expected = layer(x)
        with torch.autocast('cpu', torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        assert_close(out.float(), expected, rtol=0.05, atol=0.02)
        out.float().square().sum().backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_backend_is_that_of_the_operator():
    layer = NeighborhoodAttention(6, 2, backend='cudnn')
    with pytest.raises(ValueError, match="got 'cudnn'"):
        layer(torch.randn(1, 8, 9, 6))


test_wrong_settings = refuses(
    lambda dims, heads, K: NeighborhoodAttention(dims, heads, kernel_size=K),
    ((6, 4, 7), '6 channels'),
    ((8, 2, 4), '4'),
    ((8, 2, 1), 'got 1'),
)
