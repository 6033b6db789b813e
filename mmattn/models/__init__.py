from .backbones import (
    DAT,
    PVT,
    DATPlusPlus,
    HMaiT,
    IViT,
    LiSANet,
    MaiT,
    MaskedCaiT,
    PVTv2,
    ViT,
)
from .layers import DeformableDetrDecoder, DeformableDetrEncoder, MSDeformAttention
from .necks.mask2former_pixel_decoder import Mask2FormerPixelDecoder
from .necks.ms_deform_attn_neck import MSDeformAttnNeck
from .necks.pooled_mlp import PooledMLP

__all__ = [
    'DAT',
    'DATPlusPlus',
    'DeformableDetrDecoder',
    'DeformableDetrEncoder',
    'HMaiT',
    'IViT',
    'LiSANet',
    'MSDeformAttention',
    'MSDeformAttnNeck',
    'MaiT',
    'Mask2FormerPixelDecoder',
    'MaskedCaiT',
    'PVT',
    'PVTv2',
    'PooledMLP',
    'ViT',
]
