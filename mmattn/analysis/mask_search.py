"""Search which heads to mask, in three trainings.

This is the quick empirical search of "MaiT: Leverage Attention Masks for More Efficient
Image Transformers", https://arxiv.org/abs/2207.03006, section 4.3. Masks are lists of
masked heads, one for each layer, as in the `masking` of `mmattn.MaiT`. Each step takes
the attention locality scores of the model that was trained with the previous step's
masks. The caller trains the models.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmattn.errors import UserError

# The paper's thresholds, which it calls hyper-parameters.
HIGH, LOW = 0.65, 0.35


def initialize(depth: int) -> list[list[int]]:
    """Step 1: head 0 is masked in every layer."""
    if depth < 1:
        raise UserError(f'depth must be positive, got {depth}')
    return [[0] for _ in range(depth)]


def assign(
    locality: Tensor | Sequence[Sequence[float]], high: float = HIGH, low: float = LOW
) -> list[list[int]]:
    """Step 2: layers get masks on all heads, on head 0, or on none.

    Args:
        locality: scores of the model of step 1, shape (L, M). Only head 0 decides.
        high: a layer with a score above it gets masks on all heads.
        low: a layer with a score below it loses its mask. A score that equals a
            threshold is between the two.
    """
    scores = _scores(locality)
    if not 0 <= low <= high <= 1:
        raise UserError(
            f'thresholds must be 0 <= low <= high <= 1, got low {low} and high {high}'
        )
    every = list(range(scores.shape[1]))
    return [
        every.copy() if score > high else [] if score < low else [0]
        for score in scores[:, 0].tolist()
    ]


def calibrate(
    masks: Sequence[Sequence[int]],
    locality: Tensor | Sequence[Sequence[float]],
    low: float = LOW,
) -> list[list[int]]:
    """Step 3: unmask heads that did not become local, where step 2 masked all heads.

    Args:
        masks: the masks of step 2.
        locality: scores of the model of step 2, shape (L, M).
        low: a head with a score below it loses its mask.
    """
    scores = _scores(locality)
    if not 0 <= low <= 1:
        raise UserError(f'low must be in [0, 1], got {low}')
    if len(masks) != len(scores):
        raise UserError(
            f'masks of {len(masks)} layers, but scores of {len(scores)} layers'
        )
    every = list(range(scores.shape[1]))
    return [
        [head for head in every if row[head] >= low]
        if sorted(heads) == every
        else list(heads)
        for heads, row in zip(masks, scores.tolist(), strict=True)
    ]


def _scores(locality) -> Tensor:
    scores = torch.as_tensor(locality, dtype=torch.float64)
    if scores.dim() != 2 or not scores.numel():
        raise UserError(
            f'locality must have shape (layers, heads), got {tuple(scores.shape)}'
        )
    if not scores.isfinite().all():
        raise UserError(f'locality must be finite, got {scores.tolist()}')
    return scores
