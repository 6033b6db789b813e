from .deformable_attention import DeformableAttention
from .deformable_detr import DecoderOutput, DeformableDETRDecoder, DeformableDETREncoder
from .dense_attention import dense_attention
from .depthwise_conv import DepthwiseConv
from .drop_path import DropPath, drop_path_rates
from .grid_conv import GridConv
from .initialization import Initializable, init_linear_and_conv, init_stem_bias
from .interactive_attention import InteractiveAttention
from .masked import (
    MaskedAttention,
    RandomMaskedAttention,
    RelativeMaskedAttention,
    resolve_masking,
)
from .ms_deform_attention import MSDeformAttention
from .neighborhood_attention import NeighborhoodAttention
from .patches import (
    PatchStem,
    fit_image_channels,
    grid_of,
    pad_to_patches,
    pos_embed_map,
    pos_embed_tokens,
)
from .pointwise import PointwiseLinear, PointwiseMlp, StarReLU
from .resize import fit_on_load, resize_grid
from .separable_conv import SeparableConv
from .spatial_reduction_attention import (
    LinearSpatialReductionAttention,
    SpatialReductionAttention,
)
from .structure_aware import StructureAwareAttention
from .weight_decay import undecayed_names
from .window_attention import WindowAttention

__all__ = [
    'DecoderOutput',
    'DeformableAttention',
    'DeformableDETRDecoder',
    'DeformableDETREncoder',
    'DepthwiseConv',
    'DropPath',
    'GridConv',
    'Initializable',
    'InteractiveAttention',
    'LinearSpatialReductionAttention',
    'MSDeformAttention',
    'MaskedAttention',
    'NeighborhoodAttention',
    'PatchStem',
    'PointwiseLinear',
    'PointwiseMlp',
    'RandomMaskedAttention',
    'RelativeMaskedAttention',
    'SeparableConv',
    'SpatialReductionAttention',
    'StarReLU',
    'StructureAwareAttention',
    'WindowAttention',
    'dense_attention',
    'drop_path_rates',
    'fit_image_channels',
    'fit_on_load',
    'grid_of',
    'init_linear_and_conv',
    'init_stem_bias',
    'pad_to_patches',
    'pos_embed_map',
    'pos_embed_tokens',
    'resize_grid',
    'resolve_masking',
    'undecayed_names',
]
