from .interface import structure_aware_attention
from .real_transforms import irfft_parts, rfft_parts
from .reference import (
    l2_normalize,
    structure_aware_attention_circulant,
    structure_aware_attention_reference,
)
from .spectrum import (
    RESIZES,
    circular_kernel_spectrum,
    half_spectrum,
    hermitian_part,
    irfft_grid,
    resize_circular_kernel,
    resize_half_spectrum,
    rfft_grid,
    whole_spectrum,
)

__all__ = [
    'RESIZES',
    'circular_kernel_spectrum',
    'half_spectrum',
    'hermitian_part',
    'irfft_grid',
    'irfft_parts',
    'l2_normalize',
    'resize_circular_kernel',
    'resize_half_spectrum',
    'rfft_grid',
    'rfft_parts',
    'structure_aware_attention',
    'structure_aware_attention_circulant',
    'structure_aware_attention_reference',
    'whole_spectrum',
]
