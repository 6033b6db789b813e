from .interface import masked_attention
from .reference import neighborhood_mask

neighbourhood_mask = neighborhood_mask  # the spelling of version 0.1

__all__ = ['masked_attention', 'neighborhood_mask', 'neighbourhood_mask']
