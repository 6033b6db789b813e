"""Compute rows of softmax attention for some queries, without the whole matrix."""

from collections.abc import Sequence

import torch
from torch import Tensor


def softmax_kernels(
    q: Tensor,
    k: Tensor,
    rows: Sequence[int],
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Return rows of `softmax(q k^T scale + mask)`.

    Args:
        q, k: shape (M, N, D).
        mask: broadcasts to (M, N, N). A boolean mask keeps the scores where it is True.
        scale: defaults to D^-0.5.

    Returns:
        Shape (len(rows), M, N).
    """
    rows = list(rows)
    scores = q[:, rows] @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        mask = mask.expand(len(q), q.shape[1], k.shape[1])[:, rows]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
    return scores.softmax(-1).transpose(0, 1)
