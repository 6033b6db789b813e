from .mask2former_pixel_decoder import Mask2FormerPixelDecoder
from .ms_deform_attn_neck import MSDeformAttnNeck
from .pooled_mlp import PooledMLP

__all__ = ['MSDeformAttnNeck', 'Mask2FormerPixelDecoder', 'PooledMLP']
