"""Tables of relative positions: a number for each offset between two pixels."""

from collections.abc import Sequence

import torch
from torch import Tensor

MAX_PIXELS = 256  # of a grid whose bias is copied from rectangles of the table


def central_bias(table: Tensor, kernel_size: int) -> Tensor:
    """Return the middle of a table as the bias (M, R, R) of masked heads.

    The table, (M, rows, columns), is indexed by query minus key, the bias by key minus
    query.
    """
    radius = kernel_size // 2
    return middle_of(table, (radius, radius)).flip(1, 2)


def spread_table(
    table: Tensor, grid: Sequence[int], queries: slice = slice(None)
) -> Tensor:
    """Return the bias (M, N, N) of each query and key from a table (M, rows, columns).

    Args:
        table: a number for each offset from key to query.
        grid: the map (H, W), of N = H * W pixels.
        queries: rows of the map whose queries are wanted, all by default.
    """
    H, W = grid
    table = middle_of(table, (H - 1, W - 1))
    if _runs_eagerly() and H * W <= MAX_PIXELS:  # by few kernels
        # The keys of a query are a rectangle of the table, from its end to its start.
        keys = table.unfold(1, H, 1)[:, queries].unfold(2, W, 1)
        return keys.flip(3, 4).reshape(len(table), -1, H * W)
    # Look up whole lines of keys: in large maps, single numbers take twice as long.
    y, x = (torch.arange(side, device=table.device) for side in grid)
    rows, columns = (i[:, None] - i + len(i) - 1 for i in (y, x))  # (query, key)
    lines = table.index_select(2, columns.flatten()).unflatten(2, (W, W))
    lines = lines.transpose(1, 2).flatten(1, 2)  # x_q and row, x_k
    index = x[:, None] * (2 * H - 1) + rows[queries, None]  # (y_q, x_q, y_k)
    return lines.index_select(1, index.flatten()).view(len(table), -1, H * W)


def middle_of(table: Tensor, radii: Sequence[int]) -> Tensor:
    """Return the entries of offsets from -radius to radius on each axis.

    Offsets beyond the table have the entries of its border.
    """
    for dim, radius in zip((1, 2), radii, strict=True):
        middle = table.shape[dim] // 2
        if _runs_eagerly() and radius <= middle:
            table = table.narrow(dim, middle - radius, 2 * radius + 1)
        else:
            first, last = middle - radius, middle + radius
            index = torch.arange(first, last + 1, device=table.device)
            table = table.index_select(dim, index.clamp(0, 2 * middle))
    return table


def _runs_eagerly() -> bool:
    """Return whether sizes are numbers, and nobody fuses what finds an index.

    Compiled graphs must not depend on a comparison of sizes.
    """
    return not torch.compiler.is_compiling()
