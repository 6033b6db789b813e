from .interface import (
    fused_ms_deform_attn,
    ms_deform_attn,
    ms_deform_attn_backward,
)
from .reference import ms_deform_attn_reference

__all__ = [
    'fused_ms_deform_attn',
    'ms_deform_attn',
    'ms_deform_attn_backward',
    'ms_deform_attn_reference',
]
