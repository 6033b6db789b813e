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
from .layers import (
    DeformableDETRDecoder,
    DeformableDetrDecoder,
    DeformableDETREncoder,
    DeformableDetrEncoder,
    MSDeformAttention,
)
from .necks import Mask2FormerPixelDecoder, MSDeformAttnNeck, PooledMLP

__all__ = [
    'DAT',
    'DATPlusPlus',
    'DeformableDETRDecoder',
    'DeformableDETREncoder',
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
