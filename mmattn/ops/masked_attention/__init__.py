from .examples import example_inputs
from .interface import BACKENDS, MASK_FILLS, OPERATOR, masked_attention, resolve_heads
from .reference import (
    attention_scores,
    attention_under_mask,
    masked_attention_reference,
    neighborhood_mask,
    spread_bias,
)

neighbourhood_mask = neighborhood_mask  # the spelling of version 0.1

__all__ = [
    'BACKENDS',
    'OPERATOR',
    'MASK_FILLS',
    'attention_scores',
    'attention_under_mask',
    'example_inputs',
    'masked_attention',
    'masked_attention_reference',
    'neighborhood_mask',
    'neighbourhood_mask',
    'resolve_heads',
    'spread_bias',
]
