"""The quick empirical search for which heads to mask, in three trainings.

From "MaiT: Leverage Attention Masks for More Efficient Image Transformers",
https://arxiv.org/abs/2207.03006, section 4.3. Masks are lists, one for each layer, of
the heads that are masked: the `masking` of `mmattn.MaiT`. Each step is a function of
the locality scores (ALS) of the model that was trained with the masks of the step
before; training it is left to the caller.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# The paper's thresholds, which it calls hyper-parameters.
HIGH, LOW = 0.65, 0.35


def initialize(depth: int) -> list[list[int]]:
    """Step 1: head 0 is masked in every layer."""
    if depth < 1:
        raise ValueError(f'depth must be positive, got {depth}')
    return [[0] for _ in range(depth)]


def assign(
    locality: Tensor | Sequence[Sequence[float]], high: float = HIGH, low: float = LOW
) -> list[list[int]]:
    """Step 2: layers get masks on all heads, on head 0, or on none.

    Args:
        locality: shape (L, M), of the model of step 1. Only head 0 decides.
        high: above it, all heads of the layer are masked.
        low: below it, the layer loses its mask. A score that equals a threshold is
            between the two.
    """
    scores = _scores(locality)
    if not 0 <= low <= high <= 1:
        raise ValueError(f'need 0 <= low <= high <= 1, got low {low} and high {high}')
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
    """Step 3: where step 2 masked all heads, those that did not become local lose it.

    Args:
        masks: of step 2.
        locality: shape (L, M), of the model of step 2.
        low: below it, a head loses its mask.
    """
    scores = _scores(locality)
    if not 0 <= low <= 1:
        raise ValueError(f'low must be in [0, 1], got {low}')
    if len(masks) != len(scores):
        raise ValueError(
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
        raise ValueError(
            f'locality must have shape (layers, heads), got {tuple(scores.shape)}'
        )
    if not scores.isfinite().all():
        raise ValueError(f'locality must be finite, got {scores.tolist()}')
    return scores
