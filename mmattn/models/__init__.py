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
from .heads import PooledMLP

__all__ = [
    'DAT',
    'DATPlusPlus',
    'HMaiT',
    'IViT',
    'LiSANet',
    'MaiT',
    'MaskedCaiT',
    'PVT',
    'PVTv2',
    'PooledMLP',
    'ViT',
]
