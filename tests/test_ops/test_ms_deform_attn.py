"""Multi-scale deformable attention on the CPU: definition and fast path."""

import inspect
from itertools import product
from math import exp, floor

import pytest
import torch
from ms_deform_cases import (
    FORMS,
    LEVELS,
    NAMES,
    SHAPES,
    every_form,
    every_shape,
    setup,
)
from operator_checks import (
    check_empty,
    check_expanded_cotangent,
    check_operator,
    every_case_in_float64,
    every_dtype,
)

from mmattn.ops import fused_ms_deform_attn, ms_deform_attn
from tools.benchmark.tolerances import assert_close, run_with_grads

both_names = pytest.mark.parametrize('name', ['reference', 'torch'])


def interpolate(image, y, x):
    """Bilinearly at floats y and x, with zeros outside; (H, W, D) to (D,)."""
    top, left, out = floor(y), floor(x), torch.zeros_like(image[0, 0])
    for i, j in product((top, top + 1), (left, left + 1)):
        if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
            out = out + (1 - abs(y - i)) * (1 - abs(x - j)) * image[i, j]
    return out


def by_loops(value, points, weights, reference):
    (B, Q, M, _, P, _), D = points.shape, value.shape[3]
    maps = value.split([H * W for H, W in LEVELS], dim=1)
    out = torch.zeros(B, Q, M, D, dtype=value.dtype)
    for b, q, m in product(range(B), range(Q), range(M)):
        total = sum(exp(w) for w in weights[b, q, m].flatten().tolist())
        for (level, (H, W)), p in product(enumerate(LEVELS), range(P)):
            x, y = points[b, q, m, level, p].tolist()
            weight = weights[b, q, m, level, p].item()
            if reference is not None:
                weight = exp(weight) / total
                place = reference[b, q, level if reference.shape[2] > 1 else 0]
                if len(place) == 2:
                    x, y = place[0].item() + x / W, place[1].item() + y / H
                else:
                    left, top, width, height = place.tolist()
                    x, y = left + x / P * width / 2, top + y / P * height / 2
            image = maps[level][b, :, m].unflatten(0, (H, W))
            sample = interpolate(image, y * H - 0.5, x * W - 0.5)
            out[b, q, m] += weight * sample
    return out.flatten(2)


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


@both_names
@every_form
def test_against_loops(name, form):
    function, inputs = setup(name, **form, Q=4, D=3, dtype=torch.float64)
    assert_close('out', by_loops(*inputs), function(*inputs))


@both_names
@every_form
@every_shape
def test_against_hats(shape, form, name):
    function, inputs = setup(name, **form, **shape, dtype=torch.float64)
    hats = by_hats(shape.get('shapes', LEVELS))
    check_operator(function, inputs, expected=hats)


@both_names
@every_form
def test_gradcheck(name, form):
    """No point of these is near a pixel's center, where the slope is another."""
    levels = ((3, 4), (2, 1))
    function, inputs = setup(
        name, **form, shapes=levels, Q=3, B=1, M=2, D=2, dtype=torch.float64
    )
    leaves = [None if x is None else x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(function, leaves)


@every_case_in_float64(shape=SHAPES, form=FORMS)
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


@both_names
@pytest.mark.parametrize('boxes', [False, True], ids=['points', 'boxes'])
def test_fused_form_is_the_other_of_softmax_and_locations(name, boxes):
    function, inputs = setup(name, fused=True, boxes=boxes, dtype=torch.float64)

    def in_two_steps(value, offsets, logits, reference):
        P = offsets.shape[4]
        place = reference[:, :, None, :, None]
        if boxes:
            locations = place[..., :2] + offsets / P * place[..., 2:] / 2
        else:
            locations = (
                place
                + offsets
                / torch.tensor([(W, H) for H, W in LEVELS])[None, None, None, :, None]
            )
        weights = logits.flatten(3).softmax(-1).view_as(logits)
        return ms_deform_attn(value, LEVELS, locations, weights, backend=name)

    check_operator(function, inputs, expected=in_two_steps)


@both_names
@pytest.mark.parametrize('boxes', [False, True], ids=['points', 'boxes'])
def test_one_reference_for_all_levels(name, boxes):
    """ViT-Adapter's references have a level axis of 1."""
    function, inputs = setup(name, fused=True, boxes=boxes, dtype=torch.float64)
    inputs[3] = inputs[3][:, :, :1]

    def expanded(value, offsets, logits, reference):
        return function(
            value, offsets, logits, reference.expand(-1, -1, len(LEVELS), -1)
        )

    check_operator(function, inputs, expected=expanded)


@both_names
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_exact_pixels_and_corners(name, dtype):
    """On a pixel it is the pixel; on the corner of a map a quarter of its corner."""
    H, W, M, D = 4, 8, 2, 3  # so that coordinates are exact
    value = torch.randn(1, H * W, M, D, dtype=dtype)
    y, x = torch.meshgrid(torch.arange(H), torch.arange(W), indexing='ij')
    places = (torch.stack([x / W, y / H], -1) + torch.tensor([0.5 / W, 0.5 / H])).to(
        dtype
    )
    locations = places.view(1, H * W, 1, 1, 1, 2).expand(-1, -1, M, -1, -1, -1)
    ones = torch.ones_like(locations[..., 0])
    out = ms_deform_attn(value, [(H, W)], locations, ones, backend=name)
    assert torch.equal(out, value.flatten(2))
    corners = torch.tensor([(0, 0), (1, 0), (0, 1), (1, 1)], dtype=dtype)
    corners = corners.view(1, 4, 1, 1, 1, 2).expand(-1, -1, M, -1, -1, -1)
    out = ms_deform_attn(value, [(H, W)], corners, ones[:, :4], backend=name)
    pixels = [0, W - 1, (H - 1) * W, H * W - 1]
    assert torch.equal(out, value.flatten(2)[:, pixels] / 4)


@every_dtype
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


@both_names
@every_form
@pytest.mark.parametrize('axis', ['Q', 'B'])
def test_nothing(name, form, axis):
    """No query, or no image."""
    function, inputs = setup(name, **form, **{axis: 0})
    check_empty(function, inputs, (*inputs[1].shape[:2], 24))


@both_names
@every_form
def test_views(name, form):
    """Expanded, permuted and sliced views, and an expanded cotangent."""
    function, (value, points, weights, reference) = setup(name, **form)
    value = value.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    points = points[:1].expand_as(points)
    weights = weights.repeat_interleave(2, -1)[..., ::2]
    if reference is not None:
        reference = reference[:, :1].expand_as(reference)
    assert not any(x.is_contiguous() for x in (value, points, weights))
    check_operator(function, [value, points, weights, reference])
    check_expanded_cotangent(function, [value, points, weights, reference], 0)


@every_form
def test_inputs_are_left_alone(form):
    function, inputs = setup('torch', **form, B=1, M=1)
    before = [None if x is None else x.clone() for x in inputs]
    run_with_grads(function, inputs)
    for x, y in zip(before, inputs, strict=True):
        assert x is None or torch.equal(x, y)


@both_names
@every_form
@pytest.mark.parametrize('dtypes', ['half value', 'half points', 'all half', 'double'])
def test_mixed_dtypes(name, form, dtypes):
    """Points may be more precise than value, or less; sums never are less."""
    value_dtype, points_dtype = {
        'half value': (torch.bfloat16, torch.float32),
        'half points': (torch.float32, torch.bfloat16),
        'all half': (torch.float16, torch.float16),
        'double': (torch.float32, torch.float64),
    }[dtypes]
    function, inputs = setup(
        name, **form, dtype=value_dtype, points_dtype=points_dtype, P=1
    )
    out, grads = run_with_grads(function, inputs)
    exact, exact_grads = run_with_grads(
        lambda *x: function(*x, backend='reference'), inputs, dtype=torch.float64
    )
    assert out.dtype == value_dtype
    assert_close('out', exact, out)
    for n, x, e, a in zip(NAMES, inputs, exact_grads, grads, strict=True):
        if x is not None:
            assert a.dtype == x.dtype
            coarser = min((x.dtype, value_dtype), key=lambda d: -torch.finfo(d).eps)
            assert_close(n, e, a, coarser)


@pytest.mark.parametrize('wanted', range(1, 16))
def test_gradients_of_some_inputs(wanted):
    function, inputs = setup('torch', fused=True)
    check_operator(function, inputs, [bool(wanted >> i & 1) for i in range(4)])


def test_autograd_sees_one_operator():
    """The fused form keeps its arguments for the backward, and nothing else."""
    function, inputs = setup('torch', fused=True)
    leaves = [x.requires_grad_() for x in inputs]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.data_ptr()), lambda x: x
    ):
        fused_ms_deform_attn(leaves[0], LEVELS, leaves[3], *leaves[1:3])
    assert sorted(kept) == sorted(x.data_ptr() for x in leaves)
