"""Neighborhood attention in plain operators for exported graphs, linear in the pixels.

A tile of queries attends to all keys around it. The last tile of an axis ends at the
border, so that it overlaps the one before. Each window then lies among its tile's keys,
and all tiles share one table of biases.
"""

import torch
from torch import Tensor

from ..common.map_tiles import count_tiles, even_size, gather, join, positions, spread
from ..common.precision import compute_dtype
from .reference import window_width


def neighborhood_attention_decomposition(
    q: Tensor, k: Tensor, v: Tensor, rpb: Tensor
) -> Tensor:
    """Return what `mmattn.ops.neighborhood_attention` does."""
    H, W, _, D = q.shape[1:]
    K = window_width(rpb)
    dtype, storage = compute_dtype(q.dtype), q.dtype
    q, k, v, rpb = (x.to(dtype) for x in (q * D**-0.5, k, v, rpb))
    T, U = (even_size(side, K) for side in (H, W))
    n, m = count_tiles(H, T), count_tiles(W, U)
    rows, columns = (
        (torch.arange(count, device=q.device) * size).clamp(max=side - size)
        for count, size, side in ((n, T, H), (m, U, W))
    )
    y, x = positions(rows, T), positions(columns, U)  # of queries, (n, T) and (m, U)
    key_y = positions(rows - K // 2, T + K - 1)  # (n, S)
    key_x = positions(columns - K // 2, U + K - 1)  # (m, V)
    q = gather(q, y, x)  # (B, M, n * m, T * U, D)
    k, v = (gather(values, key_y, key_x) for values in (k, v))
    seen = _seen(y, key_y, H, K)[:, None, :, None, :, None]
    seen = seen & _seen(x, key_x, W, K)[:, None, :, None]  # (n, m, T, U, S, V)
    seen = seen.flatten(4).flatten(2, 3).flatten(0, 1)  # (n * m, T * U, S * V)
    table = spread(rpb, T, U, 0, radius=K // 2)[:, None]
    scores = (q @ k.mT + table).masked_fill(~seen, -torch.inf)
    out = join(scores.softmax(-1) @ v, n, m, T, U)
    for dim, count, size, side in ((1, n, T, H), (2, m, U, W)):
        index = torch.arange(side, device=q.device)
        skipped = torch.where(index >= (count - 1) * size, count * size - side, 0)
        out = out.index_select(dim, index + skipped)
    return out.to(storage)


def _seen(queries: Tensor, keys: Tensor, side: int, K: int) -> Tensor:
    """Return which keys (n, S) are in the windows of queries (n, T), (n, T, S)."""
    start = (queries - K // 2).clamp(0, side - K)[..., None]
    return (keys[:, None] >= start) & (keys[:, None] < start + K)
