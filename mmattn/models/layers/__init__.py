from .interactive_attention import InteractiveAttention

__all__ = ['InteractiveAttention']
