from .examples import example_inputs
from .interface import BACKENDS, OPERATOR, neighborhood_attention
from .reference import neighborhood_attention_reference, windows

__all__ = [
    'BACKENDS',
    'OPERATOR',
    'example_inputs',
    'neighborhood_attention',
    'neighborhood_attention_reference',
    'windows',
]
