"""FLOPs of masked attention, and rows of its maps."""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from ..common.inspection import Attention, Flops


def all_pairs(q, grid, kernel_size, num_special) -> int:
    return q[1] ** 2


def pairs_inside_mask(q, grid, kernel_size, num_special) -> int:
    """Count a whole window for each patch, also where a border clips it.

    A window is not larger than the map. Special tokens see all tokens, and all tokens
    see them.
    """
    window = prod(min(kernel_size, side) for side in grid)
    return prod(grid) * (window + num_special) + num_special * q[1]


def forward_flops(pairs: Callable[..., int]) -> Callable[..., int]:
    """Return the rule of the forward.

    A score and a product with v count for each pair. A soft mask lets all pairs in. The
    correction of its neighbors does not count.

    Args:
        pairs: returns the pairs of a query and a key that a hard-masked head counts.
    """

    def rule(q, k, v, bias, alpha, grid, kernel_size, num_special, *args, **kwargs):
        B, _, M, D = q
        count = pairs if alpha is None else all_pairs
        return 2 * 2 * B * M * D * count(q, grid, kernel_size, num_special)

    return rule


FLOPS = Flops(forward_flops(pairs_inside_mask), dense=forward_flops(all_pairs))


def patch_offsets(
    rows: Sequence[int],
    grid: Sequence[int],
    num_special: int = 0,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return key minus query, downward and to the right, shape (2, len(rows), N).

    Tokens on the grid are in row-major order. The values for special tokens, which come
    first, have no meaning.
    """
    place = torch.arange(num_special + grid[0] * grid[1], device=device) - num_special
    place = torch.stack([place // grid[1], place % grid[1]])
    return place[:, None] - place[:, list(rows), None]


def masked_rows(
    q: Tensor,
    k: Tensor,
    rows: Sequence[int],
    grid: Sequence[int],
    kernel_size: int,
    num_special: int,
    bias: Tensor | None,
    alpha: Tensor | None,
    mask_fill: str,
) -> Tensor:
    """Return rows of the softmax of masked scores, given `masked_attention`'s inputs.

    Args:
        q, k: shape (N, M, D).
        bias: shape (M, R, R).
        alpha: shape (M,).

    Returns:
        Shape (len(rows), M, N).
    """
    rows = list(rows)
    dtype = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum('imd,jmd->imj', q[rows].to(dtype), k.to(dtype))
    scores = scores * q.shape[-1] ** -0.5
    offset = patch_offsets(rows, grid, num_special, device=q.device)
    is_special = torch.arange(len(q), device=q.device) < num_special
    is_special = is_special[rows, None] | is_special
    near = (offset.abs() <= kernel_size // 2).all(0) & ~is_special
    if bias is not None:
        y, x = offset[:, near] + kernel_size // 2
        spread = torch.zeros_like(scores).transpose(0, 1)
        spread[:, near] = bias[:, y, x].to(dtype)
        scores = scores + spread.transpose(0, 1)
    outside = ~(near | is_special)[:, None]
    if mask_fill == 'neg_inf':
        scores = scores.masked_fill(outside, -torch.inf)
    elif alpha is None:
        scores = scores.masked_fill(outside, 0)
    else:
        scores = torch.where(outside, alpha.to(dtype)[:, None] * scores, scores)
    return scores.softmax(-1)


def attention(q, k, v, bias, alpha, *, grid: Sequence[int], **mask) -> Attention:
    """Return the attention of a call."""
    return Attention(
        q.shape[:3],
        lambda rows: masked_rows(
            q[0], k[0], rows, grid, bias=bias, alpha=alpha, **mask
        ),
        grid=(mask['num_special'], *grid),
    )
