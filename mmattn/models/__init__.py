from . import backbones
from .backbones import *  # noqa: F403
from .classifiers import PooledClassifier
from .layers import (
    DeformableDETRDecoder,
    DeformableDETREncoder,
    MSDeformAttention,
)
from .necks import Mask2FormerPixelDecoder, MSDeformAttnNeck, PooledMLP
from .presets import create_model, list_models

__all__ = [
    'DeformableDETRDecoder',
    'DeformableDETREncoder',
    'MSDeformAttention',
    'MSDeformAttnNeck',
    'Mask2FormerPixelDecoder',
    'PooledClassifier',
    'PooledMLP',
    'create_model',
    'list_models',
]
__all__ += backbones.__all__
