from .interface import MASK_FILLS, masked_attention, resolve_heads
from .reference import (
    attention_scores,
    attention_under_mask,
    neighborhood_mask,
    spread_bias,
)

__all__ = [
    'MASK_FILLS',
    'attention_scores',
    'attention_under_mask',
    'masked_attention',
    'neighborhood_mask',
    'resolve_heads',
    'spread_bias',
]
