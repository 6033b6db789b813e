"""Deformable attention by products of matrices, for exported graphs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .reference import attend, side_positions


def deformable_attention_decomposition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    table: Tensor,
    *,
    grid: Sequence[int],
    align_corners: bool,
) -> Tensor:
    """Return `deformable_attention_reference` of the same arguments.

    This is faster in ONNX Runtime than `GridSample`, see the README.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    positions, table = positions.to(dtype), table.to(dtype)
    return attend(q, k, v, product_bias(table, positions, grid, align_corners))


def product_bias(
    table: Tensor, positions: Tensor, grid: Sequence[int], align_corners: bool
) -> Tensor:
    """Return `sampled_bias` of the same arguments, shape (B, M, H * W, K).

    The bias of key s is `Y_s table X_s^T`, see the README.
    """
    (B, G, K, _), (H, W), (M, Th, Tw) = positions.shape, grid, table.shape
    m = M // G
    x, y = positions.unbind(-1)
    Y, X = (
        _hats(places, side, length, align_corners)
        for places, side, length in ((y, H, Th), (x, W, Tw))
    )  # (B, G, K, H, Th) and (B, G, K, W, Tw)
    tables = table.unflatten(0, (G, m)).transpose(1, 2).flatten(2)  # (G, Th, m * Tw)
    lines = Y.flatten(2, 3) @ tables  # (B, G, K * H, m * Tw)
    bias = lines.reshape(B, G, K, H * m, Tw) @ X.mT  # (B, G, K, H * m, W)
    bias = bias.reshape(B, G, K, H, m, W).permute(0, 1, 4, 3, 5, 2)
    return bias.reshape(B, M, H * W, K)


def _hats(places: Tensor, side: int, length: int, align_corners: bool) -> Tensor:
    """Return the weights of a table's numbers for a side of queries and each key.

    A row has the two weights of a linear interpolation, and zeros.

    Args:
        places: where the keys lie on this side, shape (B, G, K).
        side: queries on this side.
        length: numbers of the table on this side.
        align_corners: see `query_positions`.

    Returns:
        Shape (B, G, K, side, length).
    """
    like = dict(dtype=places.dtype, device=places.device)
    queries = side_positions(side, align_corners, **like)
    displacement = (queries - places[..., None]) / 2
    numbers = (displacement + 1) / 2 * (length - 1)
    distance = numbers[..., None] - torch.arange(length, **like)
    return (1 - distance.abs()).clamp(min=0)
