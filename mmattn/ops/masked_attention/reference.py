"""Masked attention, written as the paper defines it, with dense N x N maps.

Li, Ardestani and Hassoun, "MaiT: Leverage Attention Masks for More Efficient Image
Transformers", https://arxiv.org/abs/2207.03006, equation 2 and section 4.3. No official
code is known.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def neighborhood_mask(
    grid: Sequence[int],
    kernel_size: int = 3,
    num_special: int = 0,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return which token attends to which, boolean (N, N), N = num_special + H * W.

    Special tokens come first, and their rows and columns are all True. A patch attends
    to a square of kernel_size x kernel_size patches around it, clipped at the borders.
    """
    H, W = grid
    y, x = (
        axis.flatten()
        for axis in torch.meshgrid(
            torch.arange(H, device=device),
            torch.arange(W, device=device),
            indexing='ij',
        )
    )
    near = [(p[:, None] - p).abs() <= kernel_size // 2 for p in (y, x)]
    return F.pad(near[0] & near[1], (num_special, 0, num_special, 0), value=True)


def attention_under_mask(
    q, k, v, mask, bias=None, alpha=None, mask_fill='zero'
) -> Tensor:
    """Attend with scores that are multiplied by any mask before the softmax.

    Args:
        q, k, v: shape (B, N, M, D).
        mask: boolean, broadcasts to (M, N, N).
        bias: added to the scores before the mask, broadcasts to (M, N, N).
        alpha: shape (M,), the factor of scores outside the mask; None is 0.
        mask_fill: 'zero', or 'neg_inf' to give tokens outside the mask no weight.

    Returns:
        Shape (B, N, M, D).
    """
    scores, v = attention_scores(q, k, v, mask, bias, alpha, mask_fill)
    return (scores.softmax(dim=-1) @ v).transpose(1, 2).to(q.dtype)


def attention_scores(q, k, v, mask, bias=None, alpha=None, mask_fill='zero'):
    """Return the masked scores (B, M, N, N) and v as (B, M, N, D).

    Both are in the dtype of the arithmetic.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias.to(dtype)
    if mask_fill == 'neg_inf':
        scores = scores.masked_fill(~mask, float('-inf'))
    elif alpha is None:
        scores = scores.masked_fill(~mask, 0)
    else:
        scores = torch.where(mask, scores, alpha.to(dtype)[:, None, None] * scores)
    return scores, v


def stencil_offsets(
    grid: Sequence[int],
    kernel_size: int,
    num_special: int = 0,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return which entry of a flat R x R bias each pair of tokens takes, (N, N).

    The query (y_q, x_q) and the key (y_k, x_k) take entry [R // 2 + y_k - y_q,
    R // 2 + x_k - x_q]. R^2, one past the last entry, stands for none: the pair is
    outside the R x R square, or has a special token.
    """
    H, W = grid
    R = kernel_size
    y, x = (torch.arange(side, device=device) for side in (H, W))
    rows, columns = (i - i[:, None] + R // 2 for i in (y, x))  # (H, H) and (W, W)
    offsets = R * rows[:, None, :, None] + columns[:, None]  # (H, W, H, W)
    near = neighborhood_mask(grid, R, device=device)
    offsets = offsets.flatten(2).flatten(0, 1).where(near, R * R)
    return F.pad(offsets, (num_special, 0, num_special, 0), value=R * R)


def spread_bias(bias: Tensor, grid: Sequence[int], num_special: int = 0) -> Tensor:
    """Spread a bias of offsets (M, R, R) to pairs of tokens (M, N, N), 0 elsewhere."""
    R = bias.shape[-1]
    offsets = stencil_offsets(grid, R, num_special, device=bias.device)
    return F.pad(bias.flatten(1), (0, 1))[:, offsets]


def masked_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    alpha: Tensor | None = None,
    *,
    grid: Sequence[int],
    kernel_size: int = 3,
    num_special: int = 0,
    mask_fill: str = 'zero',
) -> Tensor:
    """Return `mmattn.ops.masked_attention` with all heads masked."""
    mask = neighborhood_mask(grid, kernel_size, num_special, device=q.device)
    if bias is not None:
        bias = spread_bias(bias, grid, num_special)
    return attention_under_mask(q, k, v, mask, bias, alpha, mask_fill)
