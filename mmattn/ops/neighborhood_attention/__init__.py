from .interface import neighborhood_attention
from .reference import neighborhood_attention_reference, windows

__all__ = [
    'neighborhood_attention',
    'neighborhood_attention_reference',
    'windows',
]
