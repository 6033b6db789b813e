from .initialization import init_linear_and_conv
from .interactive_attention import InteractiveAttention
from .masked_attention import MaskedAttention
from .masking import resolve_masking
from .patches import (
    fit_loaded_pos_embed,
    pad_to_patches,
    pos_embed_map,
    pos_embed_tokens,
)
from .pointwise import PointwiseLinear, PointwiseMlp, StarReLU
from .random_mask import RandomMaskedAttention
from .relative_position import RelativeMaskedAttention
from .separable_conv import SeparableConv
from .structure_aware_attention import StructureAwareAttention

__all__ = [
    'InteractiveAttention',
    'MaskedAttention',
    'PointwiseLinear',
    'PointwiseMlp',
    'RandomMaskedAttention',
    'RelativeMaskedAttention',
    'SeparableConv',
    'StarReLU',
    'StructureAwareAttention',
    'fit_loaded_pos_embed',
    'init_linear_and_conv',
    'pad_to_patches',
    'pos_embed_map',
    'pos_embed_tokens',
    'resolve_masking',
]
