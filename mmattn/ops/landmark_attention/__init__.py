from .interface import landmark_attention
from .reference import (
    landmark_attention_folded,
    landmark_attention_reference,
    mix_heads,
    mixed_attention_reference,
)

__all__ = [
    'landmark_attention',
    'landmark_attention_folded',
    'landmark_attention_reference',
    'mix_heads',
    'mixed_attention_reference',
]
