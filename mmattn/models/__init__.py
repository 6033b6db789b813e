from .backbones import IViT, LiSANet, ViT
from .heads import PooledMLP

__all__ = ['IViT', 'LiSANet', 'PooledMLP', 'ViT']
