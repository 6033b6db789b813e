"""mmattn: efficient-attention backbones for dense prediction on OpenMMLab."""

from mmattn.compat import activate

__version__ = '0.2.0'
__all__ = ['__version__']

activate()
