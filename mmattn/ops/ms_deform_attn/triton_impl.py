"""Launchers of the kernels of multi-scale deformable attention, in triton_*.py.

Forward and backward take one launch each, which includes the softmax and the arithmetic
of locations where there is a reference. Atomic additions sum the gradient of value in
fp32, in vectors of four from compute capability 9.0. With
`torch.use_deterministic_algorithms(True)` points are sorted instead, of as many images
and heads at a time as fit in a workspace of fixed size. The first call that needs
Triton imports it.
"""

from collections.abc import Iterator, Sequence
from math import gcd

import torch
from torch import Tensor

from ..common.checks import dtype_reason
from ..triton import launch

MAX_HEAD_WIDTH, MAX_LEVELS, MAX_POINTS = 256, 8, 2048

NUM_WARPS = 2  # with more, Triton 3.6 exchanges places of points between warps
LANE_BYTES = 16  # of a vector
SECTOR = 32  # bytes that memory reads at once
LOGITS = 256  # of a program at a time: 4 for each lane of a row
VALUE_TILE = 1024  # channels of all rows of a program over pixels
VALUE_POINTS = 8  # points of a pixel that it reads at a time
WORKSPACE = 2**21  # points that are sorted at a time


def unsupported(
    value: Tensor, points: Tensor, weights: Tensor, reference: Tensor | None
) -> str | None:
    """Return why this backend does not support a call, or None."""
    if reason := launch.reason(value, MAX_HEAD_WIDTH):
        return reason
    dtypes = (*launch.DTYPES, torch.float64)
    if reason := dtype_reason(dtypes, points, weights, reference):
        return reason
    if value.shape[1] >= 2**31:
        return f'supports fewer than 2^31 pixels, got {value.shape[1]}'
    L, P = points.shape[3:5]
    if L > MAX_LEVELS:
        return f'supports at most {MAX_LEVELS} levels, got {L}'
    if reference is not None and L * P > MAX_POINTS:
        return f'supports a softmax of at most {MAX_POINTS} points, got {L * P}'
    return None


def forward(value, points, weights, reference, *, shapes):
    """Return the output (B, Q, M, D)."""
    B, _, M, D = value.shape
    Q = points.shape[1]
    out = torch.empty(B, Q, M, D, dtype=value.dtype, device=value.device)
    if out.numel():
        from .triton_fwd import _fwd_kernel

        inputs, strides, tile = _prepare(value, points, weights, reference)
        size = value.element_size()
        # Rows that are not aligned take more loads, whose registers would spill.
        channels = 16 if tile['UNIT'] * size >= LANE_BYTES else 8
        options = _options(tile, size, size, channels)
        with torch.cuda.device_of(value):
            _fwd_kernel[(B * M * launch.cdiv(Q, options['BQ']),)](
                *inputs, out, *strides, Q, M, *_sides(shapes), **options
            )
    return out


def backward(grad, value, points, weights, reference, *, shapes):
    """Return the gradients of value, points, weights and reference, or None for it."""
    B, S, M, D = value.shape
    Q = points.shape[1]
    if not B * Q:
        return launch.zeros(value, points, weights, reference)
    inputs, strides, tile = _prepare(value, points, weights, reference)
    options = _options(tile, value.element_size(), 4)
    inputs = grad.contiguous(), *inputs
    dpoints, dweights = (
        torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (points, weights)
    )
    shares = None  # shares of heads in the gradient of reference
    if reference is not None:
        shares = launch.empty(value, B, Q, M, *reference.shape[2:])
    outputs = dpoints, dweights, shares
    with torch.cuda.device_of(value):
        add_up = (
            _value_in_order
            if torch.are_deterministic_algorithms_enabled()
            else _value_by_atomics
        )
        dvalue = add_up(inputs, outputs, strides, options, shapes)
    if reference is None:
        return dvalue, dpoints, dweights, None
    return dvalue, dpoints, dweights, shares.sum(2).to(reference.dtype)


def _sides(shapes: Sequence[int]) -> list[int]:
    """Pad the sides of levels for kernels, which have arguments for MAX_LEVELS."""
    return [*shapes, *(1 for _ in range(2 * MAX_LEVELS - len(shapes)))]


def _prepare(value, points, weights, reference):
    """Return inputs, strides of value in units of UNIT elements, and constants."""
    if value.stride(3) != 1:
        value = value.contiguous()
    strides = value.stride()[:3]
    unit = gcd(16, *strides)  # a constant, so that the compiler keeps vectors
    tile = dict(
        L=points.shape[3], P=points.shape[4], D=value.shape[3], UNIT=unit,
        LR=1 if reference is None else reference.shape[2],
        COORDS=0 if reference is None else reference.shape[3],
    )  # fmt: skip
    tensors = (x if x is None else x.contiguous() for x in (points, weights, reference))
    return (value, *tensors), [stride // unit for stride in strides], tile


def _options(tile: dict, value_size: int, size: int, channels: int = 16) -> dict:
    """Return the options of a launch; a program takes BQ queries and BP points each.

    A part of a pixel has a sector or more.

    Args:
        tile: constants of a call.
        value_size: bytes of an element of value.
        size: bytes of an element of which a lane takes a vector of each part.
        channels: most that a lane takes.
    """
    DP = launch.power_of_two(tile['D'])
    C = max(1, min(DP * value_size // SECTOR, channels * size // LANE_BYTES))
    rows = max(1, C * NUM_WARPS * 32 * LANE_BYTES // (size * DP))
    BP = min(rows, launch.power_of_two(tile['P']))
    BC = min(max(1, LOGITS // rows), launch.power_of_two(tile['L'] * tile['P']))
    sizes = dict(DP=DP, C=C, BQ=rows // BP, BP=BP, BC=BC, num_warps=NUM_WARPS)
    return tile | sizes | launch.COMPILER


def _bwd_options(options: dict) -> dict:
    """Add BK, the number of blocks of points of all levels, to the options."""
    blocks = options['L'] * launch.cdiv(options['P'], options['BP'])
    return options | dict(BK=launch.power_of_two(blocks))


def _value_options(options: dict) -> dict:
    """Return the options of a launch over BS pixels, BT points of each at a time."""
    rows = max(1, VALUE_TILE // options['DP'])
    BT = min(VALUE_POINTS, rows)
    shared = {key: options[key] for key in ('L', 'P', 'D', 'DP')}
    return shared | dict(BS=rows // BT, BT=BT, num_warps=4) | launch.COMPILER


def _value_by_atomics(inputs, outputs, strides, options, shapes):
    """Fill the outputs and return the gradient of value."""
    from .triton_bwd import _bwd_kernel

    _, value, points, _, _ = inputs
    (B, S, M, D), Q = value.shape, points.shape[1]
    dvalue = torch.zeros(B, S, M, D, dtype=torch.float32, device=value.device)
    _bwd_kernel[(B * M * launch.cdiv(Q, options['BQ']),)](
        *inputs, dvalue, *outputs, None, None, *strides, S, Q, M, 0, 0, M, 0, 0,
        *_sides(shapes), ATOMICS=True, **_bwd_options(options),
    )  # fmt: skip
    return dvalue.to(value.dtype)


def _value_in_order(inputs, outputs, strides, options, shapes):
    """Compute `_value_by_atomics`, with sums in a fixed order."""
    from .triton_bwd import _bwd_kernel, _bwd_value_kernel

    grad, value, points, _, _ = inputs
    (B, S, M, D), (_, Q, _, L, P, _) = value.shape, points.shape
    sides, device = _sides(shapes), value.device
    num_cells = sum(
        (H + 1) * (W + 1) for H, W in zip(shapes[::2], shapes[1::2], strict=True)
    )
    dvalue = torch.empty(B, S, M, D, dtype=value.dtype, device=device)
    room = min(WORKSPACE // (Q * L * P), (2**31 - 1) // num_cells)  # of heads
    for first_image, num_images, first_head, num_heads in _parts(B, M, room):
        heads = num_images * num_heads
        part = first_image, first_head, num_heads, num_cells
        num_points = heads * Q * L * P
        cells = torch.empty(num_points, dtype=torch.int32, device=device)
        shares = launch.empty(value, num_points, 3)
        _bwd_kernel[(heads * launch.cdiv(Q, options['BQ']),)](
            *inputs, None, *outputs, cells, shares, *strides, S, Q, M, *part,
            heads * num_cells, *sides, ATOMICS=False, **_bwd_options(options),
        )  # fmt: skip
        cells, order = cells.sort(stable=True)
        bounds = torch.arange(heads * num_cells + 1, dtype=torch.int32, device=device)
        bounds = torch.searchsorted(cells, bounds)
        value_options = _value_options(options)
        _bwd_value_kernel[(heads * launch.cdiv(S, value_options['BS']),)](
            grad, order, bounds, shares, dvalue, S, Q, M, *part, *sides, **value_options
        )
    return dvalue


def _parts(B: int, M: int, room: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield parts of at most `room` heads, but at least one.

    A part holds whole images, or some heads of one image. It is given as first image,
    number of images, first head and number of heads.
    """
    images, heads = max(1, min(B, room // M)), max(1, min(M, room))
    for image in range(0, B, images):
        for head in range(0, M, heads):
            yield image, min(images, B - image), head, min(heads, M - head)
