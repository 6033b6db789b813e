"""Neighborhood attention by tiles: dense attention of a few queries to what they see.

One operator to compilers, which take minutes to trace a changing number of tiles. The
backward computes the weights anew, so nothing of them is kept.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backend import check_cotangent, needs_reference

# Pixels up to which a map is one tile.
DENSE_PIXELS = 256
BORDER_TILE = 14  # along a border


class Tiles(NamedTuple):
    """Of one axis: `queries` (n, T) of each tile and `keys` (n, S) that they see.

    All are positions. `offsets` (n, T, S) are indices of the table of biases, or its
    length for a key outside the query's window. The tiles' first `count` queries are
    asked for, any others repeat the last one.
    """

    queries: Tensor
    keys: Tensor
    offsets: Tensor
    count: int


def cut(
    first: int, last: int, size: int, side: int, K: int, device: torch.device
) -> Tiles:
    """The queries from `first` to before `last`, `size` a tile."""
    size = min(size, last - first)
    num_keys = min(size + K - 1, side)
    starts = torch.arange(first, last, size, device=device)[:, None]
    queries = starts + torch.arange(size, device=device)
    queries = queries.clamp(max=last - 1)
    keys = (starts - K // 2).clamp(0, side - num_keys)
    keys = keys + torch.arange(num_keys, device=device)
    return Tiles(queries, keys, table_index(queries, keys, side, K), last - first)


def ends(side: int, K: int, device: torch.device) -> Tiles:
    """Two tiles: the K // 2 queries at either end, where windows are shifted."""
    queries, keys = (
        torch.stack([start, start + side - len(start)])
        for start in (torch.arange(count, device=device) for count in (K // 2, K))
    )
    return Tiles(queries, keys, table_index(queries, keys, side, K), 2 * (K // 2))


def table_index(queries: Tensor, keys: Tensor, side: int, K: int) -> Tensor:
    """Queries (n, T) and keys (n, S) to the `offsets` of `Tiles`."""
    queries, keys = queries[..., None], keys[:, None]
    start = (queries - K // 2).clamp(0, side - K)
    seen = (keys >= start) & (keys < start + K)
    return torch.where(seen, keys - queries + K - 1, 2 * K - 1)


def tiles_of(part: str, q: Tensor, rpb: Tensor) -> tuple[Tiles, Tiles]:
    """Of the rows and columns of a part of the map; see `attend_part`."""
    H, W = q.shape[1:3]
    K = (rpb.shape[1] + 1) // 2
    R = K // 2
    if part == 'rows':
        return ends(H, K, q.device), cut(0, W, BORDER_TILE, W, K, q.device)
    if part == 'columns':
        return cut(R, H - R, BORDER_TILE, H, K, q.device), ends(W, K, q.device)
    size = max(H, W) if H * W <= DENSE_PIXELS else K
    return cut(0, H, size, H, K, q.device), cut(0, W, size, W, K, q.device)


def to_tiles(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Lines of tiles (B, n * T, m * U, M, D) to tiles (B, n * m * M, T * U, D)."""
    B, _, _, M, D = x.shape
    (n, T), (m, U) = rows.shape, columns.shape
    x = x.reshape(B, n, T, m, U, M, D).permute(0, 1, 3, 5, 2, 4, 6)
    return x.reshape(B, n * m * M, T * U, D)


def from_tiles(x: Tensor, rows: Tensor, columns: Tensor, M: int) -> Tensor:
    """Adjoint and inverse of `to_tiles`."""
    (n, T), (m, U) = rows.shape, columns.shape
    B, _, _, D = x.shape
    x = x.view(B, n, m, M, T, U, D).permute(0, 1, 4, 2, 5, 3, 6)
    return x.reshape(B, n * T, m * U, M, D)


def gather(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Map (B, H, W, M, D) to tiles."""
    lines = x.index_select(1, rows.flatten()).index_select(2, columns.flatten())
    return to_tiles(lines, rows, columns)


def scatter(tiles: Tensor, rows: Tensor, columns: Tensor, like: Tensor) -> Tensor:
    """Adjoint of `gather`: sums tiles into a map, with shape and dtype of `like`."""
    B, H, W, M, D = like.shape
    lines = from_tiles(tiles, rows, columns, M)
    out = lines.new_zeros(B, lines.shape[1], W, M, D)
    out.index_add_(2, columns.flatten(), lines)
    out = lines.new_zeros(B, H, W, M, D).index_add_(1, rows.flatten(), out)
    return out.to(like.dtype)


def window_bias(rpb: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`offsets` of rows (n, T, S) and columns (m, U, V) to (n * m * M, T * U, S * V).

    -inf outside the windows. Whole lines are looked up, as single numbers take longer.
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


def table_gradient(dbias: Tensor, rows: Tensor, columns: Tensor, M: int, side: int):
    """Adjoint of `window_bias`, (M, side, side)."""
    (n, T, S), (m, U, V) = rows.shape, columns.shape
    dbias = dbias.view(n, m, M, T, U, S, V).permute(2, 0, 3, 5, 1, 4, 6)
    dbias = dbias.reshape(M, n * T * S, m * U * V)
    row_of, column_of = (
        F.one_hot(offsets.flatten(), side + 1).to(dbias.dtype)
        for offsets in (rows, columns)
    )
    return (row_of.T @ (dbias @ column_of))[:, :side, :side]


@torch.library.custom_op(
    'mmattn::neighborhood_tiles',
    mutates_args=(),
    schema='(Tensor q, Tensor k, Tensor v, Tensor rpb, str part) -> Tensor',
)
def _attend_part(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor, part: str) -> Tensor:
    """`attend_part` as one operator, with a backward that recomputes the weights."""
    return attend_tiles(F.scaled_dot_product_attention, q, k, v, rpb, part)


def attend_part_reference(
    q: Tensor, k: Tensor, v: Tensor, rpb: Tensor, part: str
) -> Tensor:
    """`attend_part` in plain PyTorch, which is differentiable by all means."""

    def attention(q, k, v, bias):
        return (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v

    return attend_tiles(attention, q, k, v, rpb, part)


def attend_tiles(
    attention: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rpb: Tensor,
    part: str,
) -> Tensor:
    """`attend_part` with the attention (q, k, v, bias) of each tile left open."""
    rows, columns = tiles_of(part, q, rpb)
    bias = window_bias(rpb, rows.offsets, columns.offsets).to(q.dtype)
    M = q.shape[3]
    q = gather(q, rows.queries, columns.queries)
    k, v = (gather(x, rows.keys, columns.keys) for x in (k, v))
    with torch.autocast(q.device.type, enabled=False):
        out = attention(q, k, v, bias[None])
    out = from_tiles(out.contiguous(), rows.queries, columns.queries, M)
    return out[:, : rows.count, : columns.count].contiguous()


@_attend_part.register_fake
def _(q, k, v, rpb, part):
    B, H, W, M, D = q.shape
    border = (rpb.shape[1] + 1) // 2 // 2 * 2
    if part == 'rows':
        H = border
    elif part == 'columns':
        H, W = H - border, border
    return q.new_empty(B, H, W, M, D)


@torch.library.custom_op(
    'mmattn::neighborhood_tiles_backward',
    mutates_args=(),
    schema='(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor rpb, str part) -> '
    '(Tensor, Tensor, Tensor, Tensor)',
)
def _backward(grad, q, k, v, rpb, part):
    """Gradients of q, k, v and rpb."""
    rows, columns = tiles_of(part, q, rpb)
    M, D = q.shape[3:]
    dtype = torch.promote_types(q.dtype, torch.float32)
    of_queries = rows.queries, columns.queries
    of_keys = rows.keys, columns.keys
    missing = [x.queries.numel() - x.count for x in (columns, rows)]
    grad = F.pad(grad, (0, 0, 0, 0, 0, missing[0], 0, missing[1])).to(dtype)
    with torch.autocast(q.device.type, enabled=False):
        g_t = to_tiles(grad, *of_queries)
        q_t = gather(q, *of_queries).to(dtype) * D**-0.5
        k_t, v_t = (gather(x, *of_keys).to(dtype) for x in (k, v))
        bias = window_bias(rpb.to(dtype), rows.offsets, columns.offsets)
        weights = (q_t @ k_t.mT).add_(bias).softmax(-1)
        dv = weights.mT @ g_t
        ds = g_t @ v_t.mT
        ds.sub_((ds * weights).sum(-1, keepdim=True)).mul_(weights)
        dq, dk = (ds @ k_t).mul_(D**-0.5), ds.mT @ q_t
        drpb = table_gradient(ds.sum(0), rows.offsets, columns.offsets, M, rpb.shape[1])
    return (
        scatter(dq, *of_queries, q),
        scatter(dk, *of_keys, k),
        scatter(dv, *of_keys, v),
        drpb.to(rpb.dtype).contiguous(),
    )


@_backward.register_fake
def _(grad, q, k, v, rpb, part):
    return tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in (q, k, v, rpb)
    )


def _setup_context(ctx, inputs, output):
    *tensors, ctx.part = inputs
    ctx.save_for_backward(*tensors)


def _autograd(ctx, grad):
    check_cotangent('neighborhood_attention', grad)
    return *_backward(grad, *ctx.saved_tensors, ctx.part), None


_attend_part.register_autograd(_autograd, setup_context=_setup_context)


def attend_part(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor, part: str) -> Tensor:
    """`neighborhood_attention` of some queries, all tiles at once.

    Args:
        part: 'map' for all queries, 'rows' for the K // 2 upmost and as many lowest
            rows, 'columns' for the outer columns of the rows between.

    Returns:
        Shape (B, rows, columns, M, D), without those between.
    """
    if needs_reference(q, k, v, rpb):
        return attend_part_reference(q, k, v, rpb, part)
    return _attend_part(q, k, v, rpb, part)
