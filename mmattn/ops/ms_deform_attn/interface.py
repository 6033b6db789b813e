"""Multi-scale deformable attention: arguments, checks and the operator."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from mmattn.errors import UserError

from ..common.checks import check_dims, check_not_empty, check_one_device, check_shape
from ..common.inspection import Flops
from ..common.operator import REFERENCE, Operator
from ..common.precision import cast_under_autocast, without_autocast
from . import cpp_impl, cuda_impl, torch_impl, triton_impl
from . import reference as definition
from .decomposition import ms_deform_attn_decomposition

BILINEAR_PRODUCTS = 5


def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Sequence[Sequence[int]] | Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    *,
    backend: str | None = None,
) -> Tensor:
    """Attend from each query to P points of its own on each of L maps.

    `out[b, q, m] = sum_lp attention_weights[b, q, m, l, p] * value of level l and head
    m at sampling_locations[b, q, m, l, p]`, with bilinear interpolation and zeros
    outside the map. From "Deformable DETR: Deformable Transformers for End-to-End
    Object Detection", https://arxiv.org/abs/2010.04159, equation 3, without the
    projections. mmcv's `MultiScaleDeformableAttnFunction` computes the same. B batch, S
    pixels of all levels, M heads, D head width, Q queries, L levels, P points.

    Args:
        value: shape (B, S, M, D), level after level, pixels in row-major order;
            float32, float16, bfloat16 or float64. Interpolation and sums are computed
            in float32, or in float64 for float64.
        spatial_shapes: L pairs of a height and a width. Reading them from a tensor on a
            GPU waits for the GPU.
        sampling_locations: shape (B, Q, M, L, P, 2), (x, y): (0, 0) is the outer corner
            of a level's first pixel, (1, 1) of its last one. A location that is not
            finite contributes nothing. Locations and weights may have any
            floating-point dtype, but half precision does not resolve the pixels of a
            large map.
        attention_weights: shape (B, Q, M, L, P).
        backend: 'cuda', 'triton', 'cpp', 'torch', 'reference', or None for the
            fastest one that supports the call. It is 'reference' in forward mode and
            under `torch.func.grad`.

    Returns:
        Shape (B, Q, M * D), dtype as value. Under autocast value is cast to autocast's
        dtype first. Differentiable with respect to value, locations and weights; second
        derivatives go through the definition. With
        `torch.use_deterministic_algorithms(True)` the gradients are bitwise equal in
        each run.

    Raises:
        ValueError: shapes, dtypes or devices disagree, or `backend` does not support
            the call.

    Example:
        >>> import torch
        >>> shapes = [(28, 40), (14, 20)]
        >>> value = torch.randn(2, 28 * 40 + 14 * 20, 8, 32)
        >>> locations = torch.rand(2, 100, 8, 2, 4, 2)
        >>> weights = torch.rand(2, 100, 8, 2, 4).flatten(3).softmax(-1)
        >>> ms_deform_attn(value, shapes, locations, weights.unflatten(3, (2, 4))).shape
        torch.Size([2, 100, 256])
    """
    (value,) = cast_under_autocast(value)
    tensors = value, sampling_locations, attention_weights, None
    names = 'sampling_locations', 'attention_weights'
    shapes = _check(*tensors, spatial_shapes, names)
    with without_autocast(value):
        return OPERATOR(*tensors, backend=backend, shapes=shapes).flatten(2)


def fused_ms_deform_attn(
    value: Tensor,
    spatial_shapes: Sequence[Sequence[int]] | Tensor,
    reference_points: Tensor,
    sampling_offsets: Tensor,
    attention_logits: Tensor,
    *,
    backend: str | None = None,
) -> Tensor:
    """Compute `ms_deform_attn` from the outputs of a module's linear layers.

    The weights are `attention_logits.softmax` over the points of all levels together.
    The locations are `reference_points + sampling_offsets / (W, H)` of the level, and
    around a reference box (x, y, w, h) `(x, y) + sampling_offsets / P * (w, h) / 2`:
    appendix A.4 of the paper.

    Args:
        value, spatial_shapes, backend: as in `ms_deform_attn`.
        reference_points: shape (B, Q, L, 2), or (B, Q, L, 4) for boxes. With an L of 1
            all levels share a point or box.
        sampling_offsets: shape (B, Q, M, L, P, 2), (x, y).
        attention_logits: shape (B, Q, M, L, P).

    Returns:
        Shape (B, Q, M * D), dtype as value. Under autocast value is cast to autocast's
        dtype first. Differentiable with respect to value, reference points, offsets and
        logits; deterministic on request, as in `ms_deform_attn`.

    Raises:
        ValueError: as `ms_deform_attn` does.

    Example:
        >>> import torch
        >>> shapes = [(28, 40), (14, 20)]
        >>> value = torch.randn(2, 28 * 40 + 14 * 20, 8, 32)
        >>> reference = torch.rand(2, 100, 1, 2)
        >>> offsets = torch.randn(2, 100, 8, 2, 4, 2)
        >>> logits = torch.randn(2, 100, 8, 2, 4)
        >>> fused_ms_deform_attn(value, shapes, reference, offsets, logits).shape
        torch.Size([2, 100, 256])
    """
    (value,) = cast_under_autocast(value)
    tensors = value, sampling_offsets, attention_logits, reference_points
    names = 'sampling_offsets', 'attention_logits'
    shapes = _check(*tensors, spatial_shapes, names)
    with without_autocast(value):
        return OPERATOR(*tensors, backend=backend, shapes=shapes).flatten(2)


def ms_deform_attn_backward(
    grad: Tensor,
    value: Tensor,
    spatial_shapes: Sequence[Sequence[int]] | Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `ms_deform_attn`, for callers outside autograd.

    Args:
        grad: gradient of the output, shape (B, Q, M * D).
        value, spatial_shapes, sampling_locations, attention_weights, backend: as in
            `ms_deform_attn`.

    Returns:
        Gradients of value, locations and weights, each in its tensor's dtype.
    """
    tensors = value, sampling_locations, attention_weights, None
    names = 'sampling_locations', 'attention_weights'
    shapes = _check(*tensors, spatial_shapes, names)
    backend = OPERATOR.choose(*tensors, requested=backend)
    grad = grad.unflatten(2, value.shape[2:])
    if backend == REFERENCE:
        return OPERATOR.reference_backward(grad, *tensors, shapes=shapes)[:3]
    return OPERATOR.backward(grad, *tensors, shapes, backend)[:3]


def _check(value, points, weights, reference, spatial_shapes, names):
    """Return the heights and widths of the levels in turn."""
    shapes = _flat_shapes(spatial_shapes)
    check_dims('value', value, 4)
    check_dims(names[0], points, 6)
    check_dims(names[1], weights, 5)
    if reference is not None:
        check_dims('reference_points', reference, 4)
    B, S, M, D = value.shape
    Q, L, P = points.shape[1], len(shapes) // 2, points.shape[4]
    pixels = sum(H * W for H, W in definition.levels_of(shapes))
    if pixels != S:
        raise UserError(
            f'`spatial_shapes` must have {S} pixels, as `value` has, got {pixels}'
        )
    check_not_empty(M=M, D=D, P=P)
    check_shape(names[0], points, (B, Q, M, L, P, 2))
    check_shape(names[1], weights, (B, Q, M, L, P))
    if reference is not None:
        levels = 1 if reference.shape[2] == 1 else L
        sides = 4 if reference.shape[3] == 4 else 2
        check_shape('reference_points', reference, (B, Q, levels, sides))
    check_one_device(value, points, weights, reference)
    return shapes


def _flat_shapes(spatial_shapes) -> list[int]:
    if isinstance(spatial_shapes, Tensor):
        spatial_shapes = spatial_shapes.tolist()
    levels = [tuple(level) for level in spatial_shapes]
    if not levels or any(len(level) != 2 or min(level) < 1 for level in levels):
        raise UserError(
            f'`spatial_shapes` must be a height and a width of each level, got {levels}'
        )
    return [side for level in levels for side in level]


def _outputs(value, points, *tensors, **settings):
    B, _, M, D = value.shape
    return value.new_empty(B, points.shape[1], M, D)


def _example(device: str, dtype: torch.dtype) -> tuple[tuple, dict]:
    """Return the tensors and the settings of a small call."""
    value = torch.randn(2, 47, 3, 8, device=device).to(dtype)
    points = torch.rand(2, 13, 3, 2, 4, 2, device=device)
    weights = torch.rand(2, 13, 3, 2, 4, device=device)
    return (value, points, weights, None), dict(shapes=(7, 5, 4, 3))


def _flops(value, points, *args, **kwargs) -> int:
    """Count five products for each channel of each point: four pixels, one weight.

    Appendix A.1 of Deformable DETR, https://arxiv.org/abs/2010.04159, counts 5 N_q K C
    for the sampling. Locations and the softmax count nothing.
    """
    *_, D = value
    if points[3] * points[4] == 1:  # as `grid_sample`, which has no rule
        return 0
    return 2 * BILINEAR_PRODUCTS * prod(points[:-1]) * D


OPERATOR = Operator(
    'ms_deform_attn',
    definition.ms_deform_attn_reference,
    {
        'cuda': cuda_impl,
        'triton': triton_impl,
        'cpp': cpp_impl,
        'torch': torch_impl,
    },
    tensors='Tensor value, Tensor points, Tensor weights, Tensor? reference',
    settings='SymInt[] shapes',
    outputs=_outputs,
    example=_example,
    flops=Flops(_flops, kind='samplings'),
    decomposition=ms_deform_attn_decomposition,
)
