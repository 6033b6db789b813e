from .examples import example_inputs
from .interface import BACKENDS, OPERATOR, landmark_attention
from .reference import (
    landmark_attention_folded,
    landmark_attention_reference,
    mix_heads,
    mixed_attention_reference,
    mixed_attention_weights,
)

__all__ = [
    'BACKENDS',
    'OPERATOR',
    'example_inputs',
    'landmark_attention',
    'landmark_attention_folded',
    'landmark_attention_reference',
    'mix_heads',
    'mixed_attention_reference',
    'mixed_attention_weights',
]
