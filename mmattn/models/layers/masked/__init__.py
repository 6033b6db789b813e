from .attention import MaskedAttention
from .masking import resolve_masking
from .random_mask import RandomMaskedAttention

__all__ = ['MaskedAttention', 'RandomMaskedAttention', 'resolve_masking']
