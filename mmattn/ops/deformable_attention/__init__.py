from .interface import deformable_attention, deformable_attention_v2

__all__ = ['deformable_attention', 'deformable_attention_v2']
