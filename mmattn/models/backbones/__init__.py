from .hmait import HMaiT
from .ivit import IViT
from .lisanet import LiSANet
from .mait import MaiT
from .masked_cait import MaskedCaiT
from .vit import ViT

__all__ = ['HMaiT', 'IViT', 'LiSANet', 'MaiT', 'MaskedCaiT', 'ViT']
