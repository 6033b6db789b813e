from .initialization import init_linear_and_conv
from .interactive_attention import InteractiveAttention

__all__ = ['InteractiveAttention', 'init_linear_and_conv']
