from .interface import fused_ms_deform_attn, ms_deform_attn

__all__ = [
    'fused_ms_deform_attn',
    'ms_deform_attn',
]
