"""Attention operators. They need torch alone; Triton is used where it is installed."""

from .landmark_attention import landmark_attention

__all__ = ['landmark_attention']
