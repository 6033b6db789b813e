from .interface import neighborhood_attention

__all__ = ['neighborhood_attention']
