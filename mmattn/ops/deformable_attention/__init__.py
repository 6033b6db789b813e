from .interface import deformable_attention
from .reference import deformable_attention_reference, query_positions

__all__ = [
    'deformable_attention',
    'deformable_attention_reference',
    'query_positions',
]
