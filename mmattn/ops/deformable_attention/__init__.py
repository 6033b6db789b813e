from .interface import deformable_attention
from .reference import query_positions

__all__ = [
    'deformable_attention',
    'query_positions',
]
