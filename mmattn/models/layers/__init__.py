from .initialization import init_linear_and_conv
from .interactive_attention import InteractiveAttention
from .masked_attention import MaskedAttention
from .patches import fit_loaded_pos_embed, pad_to_patches, pos_embed_map
from .pointwise import PointwiseLinear, StarReLU
from .separable_conv import SeparableConv
from .structure_aware_attention import StructureAwareAttention

__all__ = [
    'InteractiveAttention',
    'MaskedAttention',
    'PointwiseLinear',
    'SeparableConv',
    'StarReLU',
    'StructureAwareAttention',
    'fit_loaded_pos_embed',
    'init_linear_and_conv',
    'pad_to_patches',
    'pos_embed_map',
]
