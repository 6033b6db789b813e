from .examples import example_inputs, v2_example_inputs
from .interface import BACKENDS, OPERATOR, deformable_attention_v2
from .own_points import deformable_attention
from .reference import deformable_attention_v2_reference, query_positions

__all__ = [
    'BACKENDS',
    'OPERATOR',
    'deformable_attention',
    'deformable_attention_v2',
    'deformable_attention_v2_reference',
    'example_inputs',
    'query_positions',
    'v2_example_inputs',
]
