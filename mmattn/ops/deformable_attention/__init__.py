from .interface import BACKENDS, OPERATOR, deformable_attention_v2, example
from .own_points import deformable_attention
from .reference import deformable_attention_v2_reference, query_positions

__all__ = [
    'BACKENDS',
    'OPERATOR',
    'example',
    'deformable_attention',
    'deformable_attention_v2',
    'deformable_attention_v2_reference',
    'query_positions',
]
