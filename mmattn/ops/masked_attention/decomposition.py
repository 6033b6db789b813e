"""Masked attention in plain operators for exported graphs, linear in the tokens.

A hard mask becomes the attention of tiles of queries to the keys around them. Its zero
fill gives each token outside the mask the weight e^0. So all patches outside a tile's
keys together are one more key with the score log(their number) and the mean of their
values.
"""

import torch
from torch import Tensor

from ..common.map_tiles import (
    count_tiles,
    crop,
    even_size,
    gather,
    join,
    positions,
    split,
    spread,
)
from ..common.precision import compute_dtype
from .reference import masked_attention_reference

TILE = 4  # queries of a tile along one axis
# The score of no weight, finite also when added twice: a query that only fills a tile
# has no key, and a softmax of -inf would leave NaN in the gradient.
LOWEST = torch.finfo(torch.float32).min / 4
DENSE_TOKENS = 256  # with at most as many tokens, N x N products are the fastest


def masked_attention_decomposition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    alpha: Tensor | None = None,
    *,
    grid: tuple[int, int],
    kernel_size: int = 3,
    num_special: int = 0,
    mask_fill: str = 'zero',
) -> Tensor:
    """Return `mmattn.ops.masked_attention` with all heads masked."""
    N, dtype, storage = q.shape[1], compute_dtype(q.dtype), q.dtype
    if alpha is not None or keys_of_a_tile(N, kernel_size) == N:
        return masked_attention_reference(
            q,
            k,
            v,
            bias,
            alpha,
            grid=grid,
            kernel_size=kernel_size,
            num_special=num_special,
            mask_fill=mask_fill,
        )
    q, k, v = (x.to(dtype) for x in (q * q.shape[-1] ** -0.5, k, v))
    maps = [x[:, num_special:].unflatten(1, grid) for x in (q, k, v)]
    special = [x[:, :num_special].transpose(1, 2) for x in (q, k, v)]  # (B, M, n, D)
    bias = None if bias is None else bias.to(dtype)
    out = _attend(*maps, *special[1:], bias, kernel_size, mask_fill)
    out = out.flatten(1, 2)  # (B, H * W, M, D)
    if num_special:
        weights = (special[0] @ k.transpose(1, 2).mT).softmax(-1)
        out = torch.cat([(weights @ v.transpose(1, 2)).transpose(1, 2), out], 1)
    return out.to(storage)


def keys_of_a_tile(N: int | torch.SymInt, kernel_size: int) -> int | torch.SymInt:
    """Return how many keys a query multiplies, which are all N on small maps."""
    around = (TILE + kernel_size - 1) ** 2
    return N if isinstance(N, int) and N <= max(DENSE_TOKENS, around) else around


def _attend(q, k, v, special_k, special_v, bias, R, mask_fill):
    """Attend from scaled queries (B, H, W, M, D) to a map and special tokens."""
    H, W = q.shape[1:3]
    T, U = (even_size(side, TILE) for side in (H, W))
    n, m = count_tiles(H, T), count_tiles(W, U)
    rows, columns = (
        positions(torch.arange(count, device=q.device) * size - R // 2, size + R - 1)
        for count, size in ((n, T), (m, U))
    )  # of the keys, (n, S) and (m, V)
    total = _sum_tokens(v)
    q = split(q, n, m, T, U)  # (B, M, n * m, T * U, D)
    k, v = (gather(x, rows, columns) for x in (k, v))  # (B, M, n * m, S * V, D)
    rows, columns = (
        ((axis >= 0) & (axis < side)).to(q.dtype)
        for axis, side in ((rows, H), (columns, W))
    )
    in_map = rows[:, None, :, None] * columns[:, None]  # (n, m, S, V)
    in_map = in_map.flatten(2).flatten(0, 1)[:, None]  # (n * m, 1, S * V)

    all_scores, all_values = [_scores(q, k, bias, R, T, U, mask_fill)], [v]
    all_scores[0] = all_scores[0] + in_map.log().clamp(min=LOWEST)
    if special_k.shape[2]:
        all_scores.append(q @ special_k[:, :, None].mT)
        all_values.append(special_v[:, :, None].expand(-1, -1, n * m, -1, -1))
    if mask_fill == 'zero':
        count = H * W - in_map.sum(-1, keepdim=True)  # (n * m, 1, 1)
        mean = (total - in_map @ v) / count.clamp(min=1)  # (B, M, n * m, 1, D)
        all_scores.append(count.log().expand(*q.shape[:-1], 1))
        all_values.append(mean)
    weights = torch.cat(all_scores, -1).softmax(-1)
    out = join(weights @ torch.cat(all_values, -2), n, m, T, U)
    return crop(out, H, W)


def _sum_tokens(v):
    """Sum a map (B, H, W, M, D) to (B, M, 1, 1, D) by a product, the fastest way."""
    _, H, W, M, D = v.shape
    total = v.new_ones(1, H * W) @ v.flatten(3).flatten(1, 2)  # (B, 1, M * D)
    return total.reshape(-1, M, 1, 1, D)


def _scores(q, k, bias, R, T, U, mask_fill):
    """Return the scores of tiles (B, M, n * m, T * U, S * V) under the mask."""
    scores = q @ k.mT
    if mask_fill == 'neg_inf':
        table = q.new_zeros(1, R, R) if bias is None else bias
        return scores + spread(table, T, U, LOWEST)[:, None]
    scores = scores * spread(q.new_ones(1, R, R), T, U, 0)
    return scores if bias is None else scores + spread(bias, T, U, 0)[:, None]
