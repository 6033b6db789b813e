from .interface import landmark_attention

__all__ = ['landmark_attention']
