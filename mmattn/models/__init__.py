from .backbones import HMaiT, IViT, LiSANet, MaiT, MaskedCaiT, ViT
from .heads import PooledMLP

__all__ = ['HMaiT', 'IViT', 'LiSANet', 'MaiT', 'MaskedCaiT', 'PooledMLP', 'ViT']
