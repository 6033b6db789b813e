from .initialization import init_linear_and_conv
from .interactive_attention import InteractiveAttention
from .pointwise import PointwiseLinear, StarReLU

__all__ = [
    'InteractiveAttention',
    'PointwiseLinear',
    'StarReLU',
    'init_linear_and_conv',
]
