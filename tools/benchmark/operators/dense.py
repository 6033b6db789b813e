"""Softmax attention through its N x N maps and through SDPA, the operators' peers."""

import torch
import torch.nn.functional as F
from torch import Tensor

# N x N maps that `dense_attention` holds at once, without and with interaction.
MAPS = {'forward': (2, 2), 'forward+backward': (3, 4)}


def mix(w: Tensor, maps: Tensor) -> Tensor:
    """(M, M) times (B, M, N, N) over the heads, without a copy of the maps."""
    return w.expand(len(maps), -1, -1).bmm(maps.flatten(2)).view_as(maps)


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, w1: Tensor | None = None, w2: Tensor | None = None
) -> Tensor:
    """`w2 softmax(w1 q k^T / sqrt(D)) v`; q, k, v and the result are (B, N, M, D)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    attn = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, M, N, N)
    if w1 is not None:
        attn = mix(w1, attn)
    attn = attn.softmax(dim=-1)
    if w2 is not None:
        attn = mix(w2, attn)
    return (attn @ v).transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def map_bytes(
    batch: int, tokens: int, heads: int, dtype: torch.dtype, *, interaction=False
) -> dict[str, int]:
    """What the maps of `dense_attention` take, by pass."""
    size = batch * heads * tokens**2 * dtype.itemsize
    return {which: maps[interaction] * size for which, maps in MAPS.items()}
