from .interface import BACKENDS, OPERATOR, example, neighborhood_attention
from .reference import neighborhood_attention_reference, windows

__all__ = [
    'BACKENDS',
    'OPERATOR',
    'example',
    'neighborhood_attention',
    'neighborhood_attention_reference',
    'windows',
]
