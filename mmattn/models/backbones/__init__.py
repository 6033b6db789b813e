from .dat import DAT
from .dat_plus_plus import DATPlusPlus
from .hmait import HMaiT
from .ivit import IViT
from .lisanet import LiSANet
from .mait import MaiT
from .masked_cait import MaskedCaiT
from .pvt import PVT
from .pvt_v2 import PVTv2
from .vit import ViT

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
    'ViT',
]
