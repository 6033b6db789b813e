from .backbones import IViT, ViT

__all__ = ['IViT', 'ViT']
