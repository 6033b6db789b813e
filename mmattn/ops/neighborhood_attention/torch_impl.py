"""Neighborhood attention in PyTorch: tiles, and on large maps a stencil on CPUs.

The stencil is that of masked attention.
"""

from torch import Tensor

from .stencil import backward, forward, has_statistics

__all__ = ['backward', 'forward', 'has_statistics', 'unsupported']


def unsupported(*tensors: Tensor) -> str | None:
    """Return None: PyTorch runs tiles on any device."""
    return None
