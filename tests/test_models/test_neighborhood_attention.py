"""Neighborhood attention: all its forms against loops over queries and keys."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from mmattn.models.layers import NeighborhoodAttention, neighborhood_attention
from mmattn.ops.masked_attention.reference import (
    attention_under_mask,
    neighborhood_mask,
)
from mmattn.ops.neighborhood_attention import tiles

FORMS = {  # TILED_PIXELS, DENSE_PIXELS, BORDER_TILE
    'dense': (10**9, 10**9, 14),
    'tiles': (10**9, 0, 14),
    'stencil': (0, 0, 4),
    'stencil-whole-border': (0, 0, 10**9),
}


def choose_form(monkeypatch, form):
    tiled, dense, border = FORMS[form]
    monkeypatch.setattr(neighborhood_attention, 'TILED_PIXELS', tiled)
    monkeypatch.setattr(tiles, 'DENSE_PIXELS', dense)
    monkeypatch.setattr(tiles, 'BORDER_TILE', border)


@pytest.fixture(params=FORMS)
def every_form(request, monkeypatch):
    choose_form(monkeypatch, request.param)


def random_inputs(grid, heads=2, width=3, kernel_size=7, batch=2):
    torch.manual_seed(0)
    side = 2 * kernel_size - 1
    shapes = [(batch, *grid, heads, width)] * 3 + [(heads, side, side)]
    return [
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes
    ]


def by_loops(q, k, v, rpb):
    """Each query alone, as NATTEN defines its window and bias."""
    _, H, W, M, D = q.shape
    K = (rpb.shape[1] + 1) // 2

    def window(position, side):
        start = min(max(position - K // 2, 0), side - K)
        return range(start, start + K)

    out = torch.zeros_like(q)
    for y, x, head in product(range(H), range(W), range(M)):
        keys = list(product(window(y, H), window(x, W)))
        rows, columns = torch.tensor(keys).unbind(1)
        bias = rpb[head, rows - y + K - 1, columns - x + K - 1]
        k_w, v_w = (tensor[:, rows, columns, head] for tensor in (k, v))
        scores = (k_w * q[:, None, y, x, head]).sum(-1) * D**-0.5 + bias
        weights = scores.softmax(dim=1)
        out[:, y, x, head] = (weights[..., None] * v_w).sum(1)
    return out


def out_and_gradients(function, inputs):
    out = function(*inputs)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return out, torch.autograd.grad(out, inputs, weights)


@pytest.mark.parametrize(
    'grid, kernel_size',
    [((7, 7), 7), ((7, 20), 7), ((8, 8), 7), ((13, 9), 7), ((5, 4), 3)],
    ids=str,
)
@pytest.mark.usefixtures('every_form')
def test_out_and_gradients_are_those_of_loops(grid, kernel_size):
    inputs = random_inputs(grid, kernel_size=kernel_size)
    expected = out_and_gradients(by_loops, inputs)
    actual = out_and_gradients(neighborhood_attention.neighborhood_attention, inputs)
    assert_close(actual, expected)


def test_all_forms_agree_on_a_large_map(monkeypatch):
    """With more than two tiles a side, the last ones incomplete."""
    inputs = random_inputs((31, 44), heads=1, batch=1)
    results = []
    for form in FORMS:
        choose_form(monkeypatch, form)
        function = neighborhood_attention.neighborhood_attention
        results.append(out_and_gradients(function, inputs))
    for result in results[1:]:
        assert_close(result, results[0])


def test_inner_queries_have_the_clipped_window_of_masked_attention():
    q, k, v, rpb = random_inputs((9, 12))
    out = neighborhood_attention.neighborhood_attention(q, k, v, rpb)
    mask = neighborhood_mask((9, 12), 7)
    offsets = torch.arange(9 * 12)
    dy = offsets // 12 - offsets[:, None] // 12
    dx = offsets % 12 - offsets[:, None] % 12
    bias = rpb[:, dy.clamp(-6, 6) + 6, dx.clamp(-6, 6) + 6]
    clipped = attention_under_mask(
        *(x.flatten(1, 2) for x in (q, k, v)), mask, bias, None, 'neg_inf'
    ).view_as(out)
    inner = slice(None), slice(3, -3), slice(3, -3)
    assert_close(out[inner], clipped[inner])
    assert not torch.isclose(out, clipped)[:, 2].any()


def test_form_depends_on_the_size(monkeypatch):
    forms = []

    def attend_part(q, k, v, rpb, part):
        rows, _ = tiles.tiles_of(part, q, rpb)
        forms.append((part, len(rows.queries)))
        return tiles.attend_part(q, k, v, rpb, part)

    monkeypatch.setattr(neighborhood_attention, 'attend_part', attend_part)
    for grid in ((14, 14), (28, 28), (56, 56)):
        inputs = random_inputs(grid, heads=1, width=1, batch=1)
        neighborhood_attention.neighborhood_attention(*inputs)
    assert forms == [('map', 1), ('map', 4), ('columns', 4), ('rows', 2)]


@pytest.mark.parametrize('grid', [(40, 40), (60, 50)], ids=['tiles', 'stencil'])
def test_nothing_of_pixels_by_neighbors_is_kept(grid):
    q, k, v, rpb = (x.float() for x in random_inputs(grid, batch=1, width=16))
    sizes = []
    pack = lambda x: sizes.append(x.numel()) or x  # noqa: E731
    inputs = [x.detach().requires_grad_() for x in (q, k, v, rpb)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        neighborhood_attention.neighborhood_attention(*inputs)
    assert sizes and max(sizes) <= q.numel()


@pytest.mark.parametrize('grid', [(1, 1), (3, 9), (10, 2), (6, 6)], ids=str)
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
    assert_close(layer(x), layer.proj(by_loops(*heads, layer.rpb).flatten(3)))


def test_bfloat16_and_autocast():
    torch.manual_seed(0)
    layer = NeighborhoodAttention(8, 2)
    for grid in ((9, 9), (20, 20), (50, 42)):
        x = torch.randn(1, *grid, 8)
        expected = layer(x)
        with torch.autocast('cpu', torch.bfloat16):
            out = layer(x)
        assert out.dtype == torch.bfloat16
        assert_close(out.float(), expected, rtol=0.05, atol=0.02)
        out.float().square().sum().backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(
    'args, message',
    [((6, 4, 7), '6 channels'), ((8, 2, 4), '4'), ((8, 2, 1), 'got 1')],
    ids=['heads', 'even', 'one'],
)
def test_wrong_settings(args, message):
    *dims, kernel_size = args
    with pytest.raises(ValueError, match=message):
        NeighborhoodAttention(*dims, kernel_size=kernel_size)


def test_forward_mode_and_func_grad(every_form):
    attend = neighborhood_attention.neighborhood_attention
    inputs = [x.detach() for x in random_inputs((8, 9), kernel_size=3, batch=1)]
    tangents = [torch.randn_like(x) for x in inputs]
    step = 1e-6
    ahead, behind = (
        attend(*(x + sign * step * t for x, t in zip(inputs, tangents, strict=True)))
        for sign in (1, -1)
    )
    expected = (ahead - behind) / (2 * step)
    tangent = torch.func.jvp(attend, tuple(inputs), tuple(tangents))[1]
    assert_close(tangent, expected, rtol=1e-6, atol=1e-7)

    def loss(*tensors):
        return attend(*tensors).square().sum()

    leaves = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    assert_close(torch.func.grad(loss, (0, 1, 2, 3))(*inputs), expected)
