from .interface import deformable_attention_v2
from .own_points import deformable_attention

__all__ = ['deformable_attention', 'deformable_attention_v2']
