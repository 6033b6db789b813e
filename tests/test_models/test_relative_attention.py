"""Masked attention with relative positions is its definition, at any size."""

import copy
from functools import partial

import pytest
import torch
from layer_checks import out_and_gradients, randn, randomize
from torch.testing import assert_close

from mmattn.models.layers import RelativeMaskedAttention, offset_tables
from mmattn.models.layers.masked import relative_attention
from mmattn.ops.common import extension
from mmattn.ops.masked_attention import attention_under_mask, neighborhood_mask
from tools.benchmark import tolerances


def dense_bias(table, table_grid, grid):
    """By loops over queries and keys, offsets clipped; (M, N, N)."""
    (H, W), (h, w) = grid, table_grid
    cells = [(y, x) for y in range(H) for x in range(W)]
    rows = []
    for y_q, x_q in cells:
        for y_k, x_k in cells:
            dy = min(max(y_q - y_k, 1 - h), h - 1) + h - 1
            dx = min(max(x_q - x_k, 1 - w), w - 1) + w - 1
            rows.append(table[dy * (2 * w - 1) + dx])
    return torch.stack(rows).view(H * W, H * W, -1).permute(2, 0, 1)


def by_definition(layer, x, grid, bias, kernel_size):
    q, k, v = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).unbind(2)
    mask = torch.ones(layer.num_heads, *[grid[0] * grid[1]] * 2, dtype=torch.bool)
    mask[: len(layer.masked_heads)] = neighborhood_mask(grid, kernel_size)
    out = attention_under_mask(q, k, v, mask, bias, None, layer.mask_fill)
    return layer.proj(out.flatten(2))


LAYERS = {
    'mixed': dict(masked_heads=2, grid=(9, 5)),
    'all-masked-5x5': dict(masked_heads=3, grid=(4, 9), kernel_size=5),
    'none-masked': dict(masked_heads=0, grid=(8, 3)),
    'stencil-beyond-table': dict(masked_heads=2, grid=(9, 4), kernel_size=15),
    'other-table': dict(masked_heads=1, grid=(3, 6), table_grid=(2, 4)),
    'neighbors-alone': dict(masked_heads=2, grid=(5, 7), mask_fill='neg_inf'),
    'pixel': dict(masked_heads=1, grid=(1, 1), backend='reference'),
}


@pytest.mark.parametrize('case', LAYERS.values(), ids=LAYERS)
def test_layer_is_its_definition(case):
    case = dict(case)
    grid = case.pop('grid')
    layer = randomize(RelativeMaskedAttention(12, 3, **case)).double()
    x = randn(2, grid[0] * grid[1], 12)

    def definition(x):
        table_grid = case.get('table_grid', (7, 7))
        bias = dense_bias(layer.relative_position_bias_table, table_grid, grid)
        return by_definition(layer, x, grid, bias, case.get('kernel_size', 3))

    expected = out_and_gradients(layer, definition, x)
    actual = out_and_gradients(layer, partial(layer, grid=grid), x)
    assert_close(actual, expected)


@pytest.mark.parametrize('most', [0, 256], ids=['lines', 'rectangles'])
@pytest.mark.parametrize('num_masked', [0, 2, 3])
def test_rows_of_queries_are_all_at_once(num_masked, most, monkeypatch):
    monkeypatch.setattr(offset_tables, 'MAX_PIXELS', most)
    layer = randomize(RelativeMaskedAttention(12, 3, num_masked)).double()
    x = randn(2, 35, 12)
    expected = out_and_gradients(layer, partial(layer, grid=(5, 7)), x)
    monkeypatch.setattr(relative_attention, 'MAX_BIAS_ELEMENTS', -1)
    monkeypatch.setattr(relative_attention, 'QUERY_ROWS', 2)
    actual = out_and_gradients(layer, partial(layer, grid=(5, 7)), x)
    assert_close(actual, expected)
    monkeypatch.setattr(layer, 'attend_globally', None)
    if num_masked < 3:
        with pytest.raises(TypeError):
            layer(x, (5, 7))


@pytest.mark.skipif(extension.UNAVAILABLE is not None, reason='it is not built')
@pytest.mark.parametrize(
    'grid, table_grid, clip',
    [((5, 7), (7, 7), True), ((9, 3), (2, 4), True), ((1, 6), (3, 3), False)],
)
def test_large_maps_by_the_kernel(grid, table_grid, clip, monkeypatch):
    layer = RelativeMaskedAttention(12, 3, 1, table_grid=table_grid, clip=clip)
    randomize(layer)
    exact = copy.deepcopy(layer).double()
    x = torch.randn(2, grid[0] * grid[1], 12)
    expected = out_and_gradients(exact, partial(exact, grid=grid), x.double())
    monkeypatch.setattr(relative_attention, 'MAX_BIAS_ELEMENTS', -1)
    monkeypatch.setattr(layer, 'attend_by_rows', None)
    out, grads = out_and_gradients(layer, partial(layer, grid=grid), x)
    tolerances.assert_close('out', expected[0], out)
    for name, grad in grads.items():
        tolerances.assert_close(name, expected[1][name], grad)
    layer.backend = 'torch'
    with pytest.raises(TypeError):
        layer(x, grid)


@pytest.mark.parametrize('backend', [None, 'torch'])
def test_large_maps_hold_nothing_of_n_by_n_for_the_backward(monkeypatch, backend):
    layer = RelativeMaskedAttention(12, 3, 1, backend=backend)
    N = 600  # the masked head of a smaller map keeps its scores, too
    x = torch.randn(1, N, 12, requires_grad=True)
    largest = []
    for limit in (relative_attention.MAX_BIAS_ELEMENTS, 2 * N**2 - 1):
        monkeypatch.setattr(relative_attention, 'MAX_BIAS_ELEMENTS', limit)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda x: x):
            layer(x, (20, 30))
        largest.append(max(t.numel() for t in kept))
    assert largest[1] < N**2 <= largest[0]
