from .backbones import IViT, ViT
from .heads import PooledMLP

__all__ = ['IViT', 'PooledMLP', 'ViT']
