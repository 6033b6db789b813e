"""Tiles of queries and the keys around them, for exported graphs.

All functions accept symbolic sizes of the map and contain no branch on them. Every tile
of an axis has the same T queries and S = T + 2 * radius keys, so a key's offset to a
query depends only on their places in the tile. Positions outside of the map are
clamped, and the caller masks or drops what they yield.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def count_tiles(side: int, size: int) -> int:
    """Return how many tiles of `size` queries cover an axis."""
    return (side + size - 1) // size


def even_size(side: int, size: int) -> int:
    """Return the size of a tile, at most `size`, that pads a known side the least."""
    if not isinstance(side, int):
        return size
    return count_tiles(side, count_tiles(side, size))


def positions(starts: Tensor, count: int) -> Tensor:
    """Return `count` positions from each start on, shape (n, count)."""
    return starts[:, None] + torch.arange(count, device=starts.device)


def split(x: Tensor, n: int, m: int, T: int, U: int) -> Tensor:
    """Cut a map (B, H, W, M, D) into tiles (B, M, n * m, T * U, D).

    Zeros pad it right and below.
    """
    B, H, W, M, D = x.shape
    below, right = n * T - H, m * U - W
    if not (isinstance(below, int) and isinstance(right, int) and below == right == 0):
        x = F.pad(x, (0, 0, 0, 0, 0, right, 0, below))
    x = x.reshape(B, n, T, m, U, M, D).permute(0, 5, 1, 3, 2, 4, 6)
    return x.reshape(B, M, n * m, T * U, D)


def gather(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Copy rows and columns of a map into tiles (B, M, n * m, S * V, D).

    Args:
        x: shape (B, H, W, M, D).
        rows, columns: positions (n, S) and (m, V). Those outside of the map are
            clamped to it.
    """
    B, H, W, M, D = x.shape
    rows, columns = rows.clamp(0, H - 1), columns.clamp(0, W - 1)
    index = rows[:, None, :, None] * W + columns[:, None]  # (n, m, S, V)
    n, m, S, V = index.shape
    x = x.flatten(1, 2).transpose(1, 2)  # (B, M, H * W, D)
    return x.index_select(2, index.flatten()).reshape(B, M, n * m, S * V, D)


def join(tiles: Tensor, n: int, m: int, T: int, U: int) -> Tensor:
    """Join tiles (B, M, n * m, T * U, D) to a map (B, n * T, m * U, M, D)."""
    B, M, _, _, D = tiles.shape
    tiles = tiles.reshape(B, M, n, m, T, U, D).permute(0, 2, 4, 3, 5, 1, 6)
    return tiles.reshape(B, n * T, m * U, M, D)


def crop(x: Tensor, H: int, W: int) -> Tensor:
    """Return the first rows and columns of a map (B, H', W', M, D)."""
    if isinstance(H, int) and isinstance(W, int):
        return x[:, :H, :W]
    # Whether a slice can be viewed in another shape depends on the size.
    for dim, side in ((1, H), (2, W)):
        x = x.index_select(dim, torch.arange(side, device=x.device))
    return x


def spread(
    table: Tensor, T: int, U: int, fill: float, radius: int | None = None
) -> Tensor:
    """Spread a table of offsets (M, R, R) to a tile's pairs, (M, T * U, S * V).

    Args:
        table: entry [m, R // 2 + dy, R // 2 + dx] is for a key at (dy, dx) from its
            query.
        T, U: rows and columns of the tile's queries.
        fill: value of the pairs outside of the table.
        radius: distance of the tile's outermost keys from its queries, R // 2 if None.
    """
    M, R, _ = table.shape
    radius = R // 2 if radius is None else radius
    table = F.pad(table, (0, 1, 0, 1), value=fill)
    for dim, size in ((1, T), (3, U)):
        query = torch.arange(size, device=table.device)[:, None]
        key = torch.arange(size + 2 * radius, device=table.device)
        entry = key - query + (R // 2 - radius)
        entry = torch.where((entry >= 0) & (entry < R), entry, R)
        table = table.index_select(dim, entry.flatten()).unflatten(dim, entry.shape)
    return table.permute(0, 1, 3, 2, 4).reshape(M, T * U, -1)  # of (M, T, S, U, V)
