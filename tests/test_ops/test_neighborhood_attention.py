"""Neighborhood attention on the CPU: the definition, its oracles and the backends."""

import pytest
import torch
from largest_tensor import LargestTensor
from neighborhood_cases import (
    FORMS,
    NAMES,
    backend,
    by_loops,
    choose_form,
    every_shape,
)
from operator_checks import check_operator, every_dtype

from mmattn.ops import neighborhood_attention
from mmattn.ops.masked_attention.reference import (
    attention_under_mask,
    neighborhood_mask,
)
from mmattn.ops.neighborhood_attention import stencil, tiles
from mmattn.ops.neighborhood_attention.reference import neighborhood_attention_reference
from tools.benchmark.inputs import make_neighborhood_inputs as make_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads


@pytest.fixture(params=FORMS)
def every_form(request, monkeypatch):
    choose_form(monkeypatch, request.param)


def test_reference_gradcheck():
    shape = dict(grid=(4, 3), K=3, B=1, M=2, D=2)
    inputs = [x.requires_grad_() for x in make_inputs(**shape, dtype=torch.float64)]
    assert torch.autograd.gradcheck(neighborhood_attention_reference, inputs)
    assert torch.autograd.gradgradcheck(backend('reference'), inputs)


@every_shape
def test_reference_against_loops(shape):
    check_operator(
        by_loops,
        make_inputs(**shape, dtype=torch.float64),
        expected=neighborhood_attention_reference,
    )


@every_shape
@pytest.mark.usefixtures('every_form')
def test_every_form_in_float64(shape):
    inputs = make_inputs(**shape, dtype=torch.float64)
    check_operator(backend('torch'), inputs)


@every_dtype
@pytest.mark.parametrize('form', FORMS)
def test_every_form_in_every_dtype(monkeypatch, form, dtype):
    choose_form(monkeypatch, form)
    inputs = make_inputs(grid=(13, 9), K=7, dtype=dtype)
    check_operator(backend('torch'), inputs)


def test_all_forms_agree_on_a_large_map(monkeypatch):
    """Take more than two tiles a side, the last ones incomplete."""
    shape = dict(grid=(31, 44), K=7, B=1, M=1, D=3)
    inputs = make_inputs(**shape, dtype=torch.float64)
    for form in FORMS:
        choose_form(monkeypatch, form)
        check_operator(backend('torch'), inputs)


def test_form_depends_on_the_size(monkeypatch):
    forms = []

    def attend_part(q, k, v, rpb, part):
        rows, _ = tiles.cut_part(part, q, rpb)
        forms.append((part, len(rows.queries)))
        return tiles.attend_part(q, k, v, rpb, part)

    monkeypatch.setattr(stencil, 'attend_part', attend_part)
    for grid in ((14, 14), (28, 28), (56, 56)):
        neighborhood_attention(*make_inputs(grid=grid, K=7, B=1, M=1, D=1))
    assert forms == [('map', 1), ('map', 4), ('rows', 2), ('columns', 4)]


def test_inner_queries_have_the_clipped_window_of_masked_attention():
    q, k, v, rpb = make_inputs(grid=(9, 12), K=7, dtype=torch.float64)
    out = neighborhood_attention(q, k, v, rpb)
    mask = neighborhood_mask((9, 12), 7)
    offsets = torch.arange(9 * 12)
    dy = offsets // 12 - offsets[:, None] // 12
    dx = offsets % 12 - offsets[:, None] % 12
    bias = rpb[:, dy.clamp(-6, 6) + 6, dx.clamp(-6, 6) + 6]
    clipped = attention_under_mask(
        *(x.flatten(1, 2) for x in (q, k, v)), mask, bias, None, 'neg_inf'
    ).view_as(out)
    inner = slice(None), slice(3, -3), slice(3, -3)
    assert_close('inner', clipped[inner], out[inner])
    assert not torch.isclose(out, clipped)[:, 2].any()


def test_a_window_of_the_map_is_plain_attention(every_form):
    q, k, v, rpb = make_inputs(grid=(7, 7), K=7, dtype=torch.float64)
    out = neighborhood_attention(q, k, v, torch.zeros_like(rpb))
    q, k, v = (x.flatten(1, 2).transpose(1, 2) for x in (q, k, v))
    expected = ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2)
    assert_close('out', expected, out.flatten(1, 2))


def test_batch_of_zero(every_form):
    out, grads = run_with_grads(backend('torch'), make_inputs(B=0))
    assert out.shape == (0, 9, 8, 3, 8)
    assert all(grad.abs().sum() == 0 for grad in grads)


@pytest.mark.parametrize('wanted', NAMES)
def test_gradient_of_one_input(every_form, wanted):
    requires_grad = [name == wanted for name in NAMES]
    check_operator(backend('torch'), make_inputs(), requires_grad)


def test_inputs_of_any_strides(every_form):
    inputs = make_inputs()
    inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    inputs[1] = inputs[1][..., ::2].repeat_interleave(2, -1)
    inputs[2] = inputs[2][:, :1].expand_as(inputs[1])
    assert not inputs[2].is_contiguous()
    check_operator(backend('torch'), inputs)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_biases_in_half_precision(every_form, dtype):
    *qkv, rpb = make_inputs(dtype=dtype)
    check_operator(backend('torch'), [*qkv, rpb.to(dtype)])


@every_dtype
@pytest.mark.parametrize('name', ['torch', 'reference'])
def test_large_scores_stay_finite(every_form, name, dtype):
    q, k, v, rpb = make_inputs(dtype=dtype)
    out, grads = run_with_grads(backend(name), [q * 100, k * 100, v, rpb * 100])
    assert all(x.isfinite().all() for x in (out, *grads))


@pytest.mark.parametrize('pixel', [(0, 0), (4, 3), (8, 7)], ids=str)
def test_nan_stays_in_its_window(pixel):
    """By the definition a NaN in a key or value is in the queries that see it."""
    y, x = pixel
    for position in range(3):
        inputs = make_inputs(K=5)
        support = torch.zeros(9, 8, dtype=torch.bool)
        if position == 0:
            support[y, x] = True
        else:
            for row in range(9):
                for column in range(8):
                    starts = [
                        min(max(place - 2, 0), side - 5)
                        for place, side in ((row, 9), (column, 8))
                    ]
                    support[row, column] = all(
                        start <= place < start + 5
                        for start, place in zip(starts, pixel, strict=True)
                    )
        inputs[position] = inputs[position].clone()
        inputs[position][0, y, x, 1] = float('nan')
        out = neighborhood_attention_reference(*inputs)
        assert torch.equal(out[0, :, :, 1].isnan().all(-1), support)
        assert torch.equal(out[0, :, :, 1].isnan().any(-1), support)
        assert out[1].isfinite().all() and out[:, :, :, [0, 2]].isfinite().all()


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('position', range(3), ids=NAMES[:3])
def test_nan_stays_in_its_tiles(monkeypatch, form, position):
    """A NaN query is in its row alone, a NaN key or value in the tiles that hold it."""
    choose_form(monkeypatch, form)
    monkeypatch.setattr(tiles, 'BORDER_TILE', 4)
    inputs = make_inputs(grid=(25, 27), K=5)
    inputs[position] = inputs[position].clone()
    inputs[position][0, 1, 2, 1] = float('nan')
    out, grads = run_with_grads(backend('torch'), inputs)
    for x in (out, *grads[:3]):
        assert x[1].isfinite().all() and x[:, :, :, [0, 2]].isfinite().all()
        if form != 'dense':  # which is one tile
            assert x[:, 12:].isfinite().all() and x[:, :, 12:].isfinite().all()
    broken = out[0, :, :, 1].isnan().any(-1)
    if position == 0:
        assert broken[1, 2] and broken.sum() == 1
    else:
        assert broken[:4, :5].all()


def test_two_runs_are_equal(every_form):
    inputs = make_inputs(grid=(30, 40), B=3)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (run_with_grads(backend('torch'), inputs) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first[0], second[0])
    assert all(map(torch.equal, first[1], second[1]))


@pytest.mark.parametrize('grid', [(40, 40), (60, 50)], ids=['tiles', 'stencil'])
def test_nothing_of_pixels_by_neighbors_is_kept(grid):
    inputs = make_inputs(grid=grid, K=7, B=1, D=16)
    sizes = []
    pack = lambda x: sizes.append(x.numel()) or x  # noqa: E731
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        neighborhood_attention(*leaves)
    assert sizes and max(sizes) <= inputs[0].numel()


def test_memory_of_a_large_map_is_linear():
    def largest(grid):
        leaves = [
            x.detach().requires_grad_()
            for x in make_inputs(grid=grid, K=7, B=1, M=1, D=32)
        ]
        with LargestTensor() as watch:
            neighborhood_attention(*leaves).sum().backward()
        return watch.numel / leaves[0].numel()

    assert largest((60, 100)) == pytest.approx(largest((60, 50)), rel=0.1)
