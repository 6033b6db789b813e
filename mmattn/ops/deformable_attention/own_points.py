"""Attention to points of each query, by multi-scale attention on one map."""

from collections.abc import Sequence

from torch import Tensor

from ..checks import check_dims, check_shape
from ..ms_deform_attn import ms_deform_attn
from ..precision import cast_under_autocast


@cast_under_autocast(0)
def deformable_attention(
    value: Tensor, grid: Sequence[int], locations: Tensor, weights: Tensor
) -> Tensor:
    """Attend from each query to P points of its own, on one map.

    `out[b, q, m] = sum_p weights[b, q, m, p] * value[b, :, m] at locations[b, q, m, p]`
    with bilinear interpolation and zeros outside the map. From "Deformable DETR:
    Deformable Transformers for End-to-End Object Detection",
    https://arxiv.org/abs/2010.04159, equation 2, without the projections. B batch, H
    and W the map, M heads, D head width, Q queries, P points. With one head for each
    tap of a kernel, P = 1, weights of 1 and a value that all heads share it is a
    deformable convolution.

    Args:
        value: shape (B, H * W, M, D), pixels in row-major order; float32, float16,
            bfloat16 or float64. Interpolation and sums are computed in float32, or in
            float64 for float64.
        grid: H and W.
        locations: shape (B, Q, M, P, 2), (x, y): (0, 0) is the outer corner of the
            first pixel, (1, 1) of the last one.
        weights: shape (B, Q, M, P).

    Returns:
        Shape (B, Q, M, D), dtype as value.

    Raises:
        ValueError: shapes disagree.
    """
    grid = tuple(grid)
    B, N, M, _ = check_dims('value', value, 4)
    check_dims('locations', locations, 5)
    Q, P = locations.shape[1], locations.shape[3]
    if len(grid) != 2 or grid[0] * grid[1] != N:
        raise ValueError(f'`grid` must have {N} pixels, got {grid}')
    check_shape('locations', locations, (B, Q, M, P, 2))
    check_shape('weights', weights, (B, Q, M, P))
    out = ms_deform_attn(
        value, [grid], locations[:, :, :, None], weights[:, :, :, None]
    )
    return out.unflatten(2, value.shape[2:])
