"""Operators. They need torch alone; Triton is used where it is installed."""

from .landmark_attention import landmark_attention
from .pointwise_linear import pointwise_linear

__all__ = ['landmark_attention', 'pointwise_linear']
