"""Neighborhood attention by tiles: dense attention of some queries to all their keys.

A tile is a rectangle of queries. Its keys are all that one of the queries sees, and a
bias of -inf excludes the others. All tiles of a map are one batch. The backward
computes the weights again, so the forward keeps none of them.
"""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..precision import compute_dtype
from .reference import windows

DENSE_PIXELS = 256  # maps with at most as many pixels are one tile
BORDER_TILE = 14  # queries of a tile along a border


class Tiles(NamedTuple):
    """The tiles of one axis; all fields but `count` are positions or indices.

    Attributes:
        queries: positions of each tile's queries, shape (n, T).
        keys: positions of the keys that they see, shape (n, S).
        offsets: indices into an axis of the table of biases, shape (n, T, S). A key
            outside the query's window has the index one past the last.
        count: how many queries are asked for. Further ones repeat the last.
    """

    queries: Tensor
    keys: Tensor
    offsets: Tensor
    count: int


def window_width(rpb: Tensor) -> int:
    """Return K of a table of biases (M, 2 K - 1, 2 K - 1)."""
    return (rpb.shape[1] + 1) // 2


def cut(
    first: int, last: int, size: int, side: int, K: int, device: torch.device
) -> Tiles:
    """Cut the queries from `first` to before `last` into tiles of `size`."""
    size = min(size, last - first)
    num_keys = min(size + K - 1, side)
    starts = torch.arange(first, last, size, device=device)[:, None]
    queries = starts + torch.arange(size, device=device)
    queries = queries.clamp(max=last - 1)
    keys = (starts - K // 2).clamp(0, side - num_keys)
    keys = keys + torch.arange(num_keys, device=device)
    return Tiles(queries, keys, table_index(queries, keys, side, K), last - first)


def ends(side: int, K: int, device: torch.device) -> Tiles:
    """Return two tiles: the K // 2 queries at either end, whose windows are shifted."""
    queries, keys = (
        torch.stack([start, start + side - len(start)])
        for start in (torch.arange(count, device=device) for count in (K // 2, K))
    )
    return Tiles(queries, keys, table_index(queries, keys, side, K), 2 * (K // 2))


def table_index(queries: Tensor, keys: Tensor, side: int, K: int) -> Tensor:
    """Return the `offsets` of `Tiles` for queries (n, T) and keys (n, S)."""
    start = windows(side, K, queries.device)[:, 0][queries][..., None]
    queries, keys = queries[..., None], keys[:, None]
    seen = (keys >= start) & (keys < start + K)
    return torch.where(seen, keys - queries + K - 1, 2 * K - 1)


def cut_part(part: str, q: Tensor, rpb: Tensor) -> tuple[Tiles, Tiles]:
    """Return the tiles of the rows and of the columns of a part; see `attend_part`."""
    H, W = q.shape[1:3]
    # On a GPU nothing is kept: CUDA graphs reuse the memory of what their first call
    # made.
    cut_part = _cut_part if q.device.type == 'cpu' else _cut_part.__wrapped__
    return cut_part(part, H, W, window_width(rpb), DENSE_PIXELS, BORDER_TILE, q.device)


@functools.lru_cache(maxsize=32)
def _cut_part(part, H, W, K, dense_pixels, border_tile, device):
    R = K // 2
    with torch.inference_mode(False):  # the next call may be outside of it
        if part == 'rows':
            return ends(H, K, device), cut(0, W, border_tile, W, K, device)
        if part == 'columns':
            return cut(R, H - R, border_tile, H, K, device), ends(W, K, device)
        size = max(H, W) if H * W <= dense_pixels else K
        return cut(0, H, size, H, K, device), cut(0, W, size, W, K, device)


def to_tiles(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Reorder lines of tiles (B, n * T, m * U, M, D) to (B, n * m * M, T * U, D)."""
    B, _, _, M, D = x.shape
    (n, T), (m, U) = rows.shape, columns.shape
    x = x.reshape(B, n, T, m, U, M, D).permute(0, 1, 3, 5, 2, 4, 6)
    return x.reshape(B, n * m * M, T * U, D)


def from_tiles(x: Tensor, rows: Tensor, columns: Tensor, M: int) -> Tensor:
    """Undo `to_tiles`."""
    (n, T), (m, U) = rows.shape, columns.shape
    B, _, _, D = x.shape
    x = x.view(B, n, m, M, T, U, D).permute(0, 1, 4, 2, 5, 3, 6)
    return x.reshape(B, n * T, m * U, M, D)


def gather(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Copy the pixels of a map (B, H, W, M, D) into tiles; one whole map is a view."""
    if _is_whole(x, rows, columns):
        return x.flatten(1, 2).transpose(1, 2)
    lines = x.index_select(1, rows.flatten()).index_select(2, columns.flatten())
    return to_tiles(lines, rows, columns)


def _is_whole(x: Tensor, rows: Tensor, columns: Tensor) -> bool:
    return (rows.shape, columns.shape) == ((1, x.shape[1]), (1, x.shape[2]))


def scatter(tiles: Tensor, rows: Tensor, columns: Tensor, like: Tensor) -> Tensor:
    """Undo `gather` by sums, into a map of the shape and dtype of `like`."""
    B, H, W, M, D = like.shape
    lines = from_tiles(tiles, rows, columns, M)
    if _is_whole(like, rows, columns):
        return lines.to(like.dtype).contiguous()
    out = lines.new_zeros(B, lines.shape[1], W, M, D)
    out.index_add_(2, columns.flatten(), lines)
    out = lines.new_zeros(B, H, W, M, D).index_add_(1, rows.flatten(), out)
    return out.to(like.dtype)


def window_bias(rpb: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the biases of all tiles, shape (n * m * M, T * U, S * V).

    They are -inf outside the windows. Whole lines of the table are looked up at a time,
    since a lookup of single numbers takes longer.

    Args:
        rows, columns: `offsets` (n, T, S) of rows and (m, U, V) of columns.
    """
    M, side, _ = rpb.shape
    (n, T, S), (m, U, V) = rows.shape, columns.shape
    table = F.pad(rpb, (0, 1, 0, 1), value=-torch.inf)
    lines = table.index_select(2, columns.flatten()).view(M, side + 1, m * U, V)
    lines = lines.transpose(1, 2).flatten(1, 2)  # (M, m * U * (side + 1), V)
    line = torch.arange(m * U, device=rpb.device).view(m, 1, U, 1) * (side + 1)
    index = line + rows.view(n, 1, T, 1, S)  # (n, m, T, U, S)
    bias = lines.index_select(1, index.flatten()).view(M, n * m, T * U, S * V)
    return bias.transpose(0, 1).reshape(n * m * M, T * U, S * V)


def table_gradient(
    dbias: Tensor, rows: Tensor, columns: Tensor, M: int, side: int
) -> Tensor:
    """Return the gradient of the table, which is the adjoint of `window_bias`."""
    (n, T, S), (m, U, V) = rows.shape, columns.shape
    dbias = dbias.view(n, m, M, T, U, S, V).permute(2, 0, 3, 5, 1, 4, 6)
    dbias = dbias.reshape(M, n * T * S, m * U * V)
    row_of, column_of = (
        F.one_hot(offsets.flatten(), side + 1).to(dbias.dtype)
        for offsets in (rows, columns)
    )
    return (row_of.T @ (dbias @ column_of))[:, :side, :side]


def attend_part(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor, part: str) -> Tensor:
    """Return the attention of some queries of a map, all tiles at once.

    Args:
        q, k, v, rpb: as of `mmattn.ops.neighborhood_attention`.
        part: 'map' for all queries, 'rows' for the K // 2 topmost rows and as many
            lowest ones, 'columns' for the outermost columns of the rows between.

    Returns:
        Shape (B, rows, columns, M, D), without the pixels between.
    """
    rows, columns = cut_part(part, q, rpb)
    bias = window_bias(rpb, rows.offsets, columns.offsets).to(q.dtype)
    M = q.shape[3]
    q = gather(q, rows.queries, columns.queries)
    k, v = (gather(x, rows.keys, columns.keys) for x in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, bias[None])
    out = from_tiles(out.contiguous(), rows.queries, columns.queries, M)
    return out[:, : rows.count, : columns.count].contiguous()


def part_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, rpb: Tensor, part: str
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v and rpb, given that of `attend_part`."""
    rows, columns = cut_part(part, q, rpb)
    M, D = q.shape[3:]
    dtype = compute_dtype(q.dtype)
    at_queries = rows.queries, columns.queries
    at_keys = rows.keys, columns.keys
    missing = [x.queries.numel() - x.count for x in (columns, rows)]
    grad = F.pad(grad, (0, 0, 0, 0, 0, missing[0], 0, missing[1])).to(dtype)
    g_t = to_tiles(grad, *at_queries)
    q_t = gather(q, *at_queries).to(dtype) * D**-0.5
    k_t, v_t = (gather(x, *at_keys).to(dtype) for x in (k, v))
    bias = window_bias(rpb.to(dtype), rows.offsets, columns.offsets)
    weights = (q_t @ k_t.mT).add_(bias).softmax(-1)
    dv = weights.mT @ g_t
    ds = g_t @ v_t.mT
    ds.sub_((ds * weights).sum(-1, keepdim=True)).mul_(weights)
    dq, dk = (ds @ k_t).mul_(D**-0.5), ds.mT @ q_t
    drpb = table_gradient(ds.sum(0), rows.offsets, columns.offsets, M, rpb.shape[1])
    return (
        scatter(dq, *at_queries, q),
        scatter(dk, *at_keys, k),
        scatter(dv, *at_keys, v),
        drpb.to(rpb.dtype).contiguous(),
    )
