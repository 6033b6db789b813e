"""Tables of relative positions: a number for each offset between two pixels."""

from collections.abc import Sequence

import torch
from torch import Tensor


def central_bias(table: Tensor, kernel_size: int) -> Tensor:
    """Return the middle of a table as the bias (M, R, R) of masked heads.

    The table, (M, rows, columns), is indexed by query minus key, the bias by key minus
    query.
    """
    radius = kernel_size // 2
    offsets = torch.arange(radius, -radius - 1, -1, device=table.device)
    for dim in (1, 2):
        middle = table.shape[dim] // 2
        table = table.index_select(dim, offsets.clamp(-middle, middle) + middle)
    return table


def spread_table(
    table: Tensor, grid: Sequence[int], queries: slice = slice(None)
) -> Tensor:
    """Return the bias (M, N, N) of each query and key from a table (M, rows, columns).

    It looks up whole lines of keys: single numbers take three times as long, and more
    in the backward.

    Args:
        table: a number for each offset from key to query.
        grid: the map (H, W), of N = H * W pixels.
        queries: rows of the map whose queries are wanted, all by default.
    """
    H, W = grid
    M, count, _ = table.shape
    rows, columns = (
        clipped_offsets(side, size // 2, table.device)
        for side, size in zip(grid, table.shape[1:], strict=True)
    )
    lines = table.index_select(2, columns.flatten()).view(M, count, W, W)
    lines = lines.transpose(1, 2).reshape(M, W * count, W)  # x_q and row, x_k
    x_q = torch.arange(W, device=table.device)
    index = x_q[:, None] * count + rows[queries, None]  # (y_q, x_q, y_k)
    return lines.index_select(1, index.flatten()).view(M, -1, H * W)


def clipped_offsets(side: int, middle: int, device: torch.device) -> Tensor:
    """Return the row of a table for each query and key of one axis, (side, side)."""
    position = torch.arange(side, device=device)
    return (position[:, None] - position).clamp(-middle, middle) + middle
