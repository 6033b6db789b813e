from .attention import MaskedAttention
from .masking import resolve_masking
from .random_mask import RandomMaskedAttention
from .relative_attention import RelativeMaskedAttention

__all__ = [
    'MaskedAttention',
    'RandomMaskedAttention',
    'RelativeMaskedAttention',
    'resolve_masking',
]
