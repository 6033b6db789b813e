from .attention import StructureAwareAttention

__all__ = ['StructureAwareAttention']
