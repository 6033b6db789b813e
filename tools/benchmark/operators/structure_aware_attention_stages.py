"""Structure-aware attention at the four stages of LiSANet-S, beside its one-shot form.

The channels are those of the stage whose map has that side in images of 224.
"""

import torch

from .case import Case
from .structure_aware_attention import DEFINITION, operator_cases

STAGES = {56: 64, 28: 128, 14: 320, 7: 384}  # channels by side
SIDES = tuple(STAGES)
BASELINE = DEFINITION
PATTERNS = 8


def cases(side: int, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    channels = next((STAGES[s] for s in SIDES if s <= side), STAGES[7])
    return operator_cases(
        side, batch, device, dtype, channels=channels, patterns=PATTERNS
    )
