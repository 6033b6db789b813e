"""Multi-scale deformable attention on the CPU: the definition and PyTorch's backend."""

import importlib
import inspect
from functools import partial

import pytest
import torch
from operator_cases import FORMS, LEVELS
from operator_cases import setup as setup_operator
from operator_checks import (
    assert_equal,
    check_decomposition,
    check_operator,
    every_case,
    threads,
)

from mmattn.ops import ms_deform_attn
from mmattn.ops.common import pieces
from tools.benchmark.tolerances import assert_close, deterministic, run_with_grads

torch_impl = importlib.import_module('mmattn.ops.ms_deform_attn.torch_impl')
SHAPES = {
    'three levels': dict(),
    'one level, one point': dict(shapes=((6, 7),), P=1),
    'one pixel': dict(shapes=((1, 1),), Q=5),
    'one row, one column': dict(shapes=((1, 63), (9, 1)), P=3),
    'one query': dict(Q=1),
    'prime queries, three images': dict(Q=31, B=3, M=1),
    'channels 30': dict(D=30, Q=5),
    'channels 71': dict(D=71, Q=5, M=2),
    'channels 1': dict(D=1),
    'one of everything': dict(shapes=((1, 1),), Q=1, B=1, M=1, D=1, P=1),
}
setup = partial(setup_operator, 'ms_deform_attn')


def by_hats(levels):
    """Sums over all pixels, with the weight (1 - |dy|)+ (1 - |dx|)+ of each."""

    def function(value, points, weights, reference):
        if reference is not None:
            P = points.shape[4]
            reference = reference[:, :, None, :, None]
            scale = points.new_tensor([[1 / W, 1 / H] for H, W in levels])[:, None]
            if reference.shape[-1] == 4:
                scale = reference[..., 2:] / (2 * P)
            points = reference[..., :2] + points * scale
            weights = weights.flatten(3).softmax(-1).view_as(weights)
        out, start = 0, 0
        for level, (H, W) in enumerate(levels):
            image = value[:, start : start + H * W].unflatten(1, (H, W))
            start += H * W
            x, y = points[:, :, :, level].unbind(-1)
            hats = [
                (1 - (at[..., None] * side - 0.5 - torch.arange(side)).abs()).relu()
                for at, side in ((y, H), (x, W))
            ]
            out = out + torch.einsum(
                'bqmp,bqmpi,bqmpj,bijmd->bqmd', weights[:, :, :, level], *hats, image
            )
        return out.flatten(2)

    return function


@every_case(2, False, shape=SHAPES, form=FORMS)
def test_against_hats(shape, form, dtype):
    function, inputs = setup('reference', **form, **shape, dtype=dtype)
    hats = by_hats(shape.get('shapes', LEVELS))
    check_operator(function, inputs, expected=hats)


@every_case(shape=SHAPES, form=FORMS)
def test_cpu_backend(shape, form, dtype):
    check_operator(*setup('torch', dtype=dtype, **form, **shape))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_definition_in_storage_precision(dtype):
    check_operator(*setup('reference', dtype=dtype))


def test_against_mmcv():
    """Its PyTorch formulation, in single precision too."""
    module = pytest.importorskip('mmcv.ops.multi_scale_deform_attn')
    # `mmattn.compat` may have put our operator in its place.
    theirs = inspect.unwrap(module.multi_scale_deformable_attn_pytorch)

    def expected(value, points, weights, reference):
        return theirs(value, LEVELS, points, weights)

    function, inputs = setup('reference', dtype=torch.float64)
    check_operator(function, inputs, expected=expected)
    check_operator(*setup('torch'), expected=expected)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16], ids=str)
def test_side_of_a_knot_is_that_of_the_definition(dtype):
    """At pixels, at the edges where zeros begin, and half a pixel beyond."""
    levels = ((2, 4),)
    y, x = torch.arange(-3, 6) / 2, torch.arange(-3, 10) / 2  # every half pixel
    places = torch.cartesian_prod((x + 0.5) / 4, (y + 0.5) / 2)
    Q = len(places)
    function, inputs = setup('torch', shapes=levels, Q=Q, P=1, B=1, dtype=dtype)
    places = places.to(inputs[1]).view(1, Q, 1, 1, 1, 2)
    inputs[1] = places.expand_as(inputs[1]).contiguous()
    check_operator(function, inputs)


def test_levels_from_a_tensor():
    function, inputs = setup('torch')
    expected = function(*inputs)
    for levels in (torch.tensor(LEVELS), [list(level) for level in LEVELS]):
        assert torch.equal(function(*inputs, shapes=levels), expected)


def test_float64_value_keeps_its_precision():
    """Also with float32 locations, which are then exact."""
    value, points, weights, _ = setup('torch', dtype=torch.float64)[1]
    points, weights = points.float(), weights.float()
    expected = ms_deform_attn(value, LEVELS, points.double(), weights.double())
    assert_close('out', expected, ms_deform_attn(value, LEVELS, points, weights))


@pytest.mark.parametrize(
    'shape',
    [
        dict(shapes=((6, 7),), P=1),
        dict(shapes=((1, 63), (9, 1)), P=3),
        dict(shapes=((1, 1),), P=1),
        dict(shapes=((2, 2), (2, 1), (1, 2))),
    ],
    ids=str,
)
def test_pieces_on_thin_maps(monkeypatch, shape):
    """A few queries at a time, the last piece with fewer."""
    monkeypatch.setattr(pieces, 'ELEMENTS', 250)
    check_operator(*setup('torch', fused=True, Q=31, **shape))
    function, inputs = setup('torch', fused=True, boxes=True, Q=31, **shape)
    inputs[3] = inputs[3][:, :, :1]
    check_operator(function, inputs)


def test_two_runs_are_equal(monkeypatch):
    """Bit by bit, asked or not, large enough for two threads to share the work."""
    monkeypatch.setattr(pieces, 'ELEMENTS', 1 << 15)
    levels = ((20, 30), (10, 15))
    function, inputs = setup('torch', fused=True, shapes=levels, Q=2100, B=1, M=2, P=4)
    with threads(2):
        runs = [run_with_grads(function, inputs) for _ in range(2)]
        with deterministic():
            runs.append(run_with_grads(function, inputs))
    for run in runs[1:]:
        assert_equal(run, runs[0])


@every_case(narrow=False, shape=SHAPES, form=FORMS)
def test_decomposition(shape, form, dtype):
    check_decomposition('ms_deform_attn', dtype=dtype, **shape, **form)
