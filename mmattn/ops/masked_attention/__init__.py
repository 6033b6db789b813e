from .interface import masked_attention
from .reference import neighbourhood_mask

__all__ = ['masked_attention', 'neighbourhood_mask']
