"""Operators, which require only torch and use Triton where it is installed."""

from .common.pointwise_linear import pointwise_linear
from .deformable_attention import deformable_attention
from .landmark_attention import landmark_attention
from .masked_attention import (
    masked_attention,
    neighborhood_mask,
)
from .ms_deform_attn import fused_ms_deform_attn, ms_deform_attn
from .neighborhood_attention import neighborhood_attention
from .structure_aware_attention import (
    circular_kernel_spectrum,
    structure_aware_attention,
)

__all__ = [
    'circular_kernel_spectrum',
    'deformable_attention',
    'fused_ms_deform_attn',
    'landmark_attention',
    'masked_attention',
    'ms_deform_attn',
    'neighborhood_attention',
    'neighborhood_mask',
    'pointwise_linear',
    'structure_aware_attention',
]
