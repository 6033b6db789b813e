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
from .classifiers import PooledClassifier
from .layers import (
    DeformableDETRDecoder,
    DeformableDETREncoder,
    MSDeformAttention,
)
from .necks import Mask2FormerPixelDecoder, MSDeformAttnNeck, PooledMLP
from .presets import create_model, list_models

__all__ = [
    'DAT',
    'DATPlusPlus',
    'DeformableDETRDecoder',
    'DeformableDETREncoder',
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
    'PooledClassifier',
    'PooledMLP',
    'ViT',
    'create_model',
    'list_models',
]
