"""Peers of the operators: softmax attention by N x N maps and by SDPA."""

import torch.nn.functional as F
from torch import Tensor


def mix(w: Tensor, maps: Tensor) -> Tensor:
    """Multiply (M, M) by (B, M, N, N) over the heads, without copying the maps."""
    return w.expand(len(maps), -1, -1).bmm(maps.flatten(2)).view_as(maps)


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, w1: Tensor | None = None, w2: Tensor | None = None
) -> Tensor:
    """Return `w2 softmax(w1 q k^T / sqrt(D)) v`; all tensors are (B, N, M, D)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    attn = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, M, N, N)
    attn = attn if w1 is None else mix(w1, attn)
    attn = attn.softmax(dim=-1)
    attn = attn if w2 is None else mix(w2, attn)
    return (attn @ v).transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
