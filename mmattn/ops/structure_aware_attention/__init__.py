from .interface import structure_aware_attention
from .spectrum import circular_kernel_spectrum

__all__ = ['circular_kernel_spectrum', 'structure_aware_attention']
