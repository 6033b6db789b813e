from .ivit import IViT
from .vit import ViT

__all__ = ['IViT', 'ViT']
