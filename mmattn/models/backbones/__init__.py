from .ivit import IViT
from .lisanet import LiSANet
from .vit import ViT

__all__ = ['IViT', 'LiSANet', 'ViT']
