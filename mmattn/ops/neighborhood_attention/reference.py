"""Neighborhood attention, written as the paper defines it: one window for each query.

Hassani, Walton, Li, Li and Shi, "Neighborhood Attention Transformer",
https://arxiv.org/abs/2204.07143, equations 1 to 4. The official code is NATTEN,
https://github.com/SHI-Labs/NATTEN; none of it is used here.
"""

import torch
from torch import Tensor

from ..common.precision import compute_dtype


def window_width(rpb: Tensor) -> int:
    """Return K of a table of biases (M, 2 K - 1, 2 K - 1)."""
    return (rpb.shape[1] + 1) // 2


def windows(side: int, K: int, device: torch.device) -> Tensor:
    """Return the K positions nearest to each position of an axis, shape (side, K).

    A window that would cross a border is shifted into the map, so it is never clipped.
    """
    start = torch.arange(side, device=device) - K // 2
    start = start.clamp(0, side - K)
    return start[:, None] + torch.arange(K, device=device)


def neighborhood_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, rpb: Tensor
) -> Tensor:
    """Return `mmattn.ops.neighborhood_attention` of the same arguments."""
    H, W, _, D = q.shape[1:]
    K = window_width(rpb)
    rows, columns = (windows(side, K, q.device) for side in (H, W))  # (side, K)
    # Indices of the table: key minus query, and K - 1 where they are one pixel.
    y, x = (
        keys - torch.arange(len(keys), device=q.device)[:, None] + K - 1
        for keys in (rows, columns)
    )
    dtype = compute_dtype(q.dtype)
    seen = slice(None), rows[:, None, :, None], columns[:, None, :]
    k, v = (
        values.to(dtype)[seen].flatten(3, 4).transpose(3, 4) for values in (k, v)
    )  # (B, H, W, M, K * K, D)
    bias = rpb.to(dtype)[:, y[:, None, :, None], x[:, None, :]]
    bias = bias.flatten(3).permute(1, 2, 0, 3)  # (H, W, M, K * K)
    scores = (k @ q.to(dtype)[..., None])[..., 0] * D**-0.5 + bias
    weights = scores.softmax(dim=-1)
    return (weights[..., None, :] @ v)[..., 0, :].to(q.dtype)
