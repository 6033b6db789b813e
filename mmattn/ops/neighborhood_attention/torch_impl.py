"""Neighborhood attention in PyTorch: tiles, and on large maps a stencil on CPUs.

The stencil is that of masked attention.
"""

from functools import partial

from torch import Tensor

from ..masked_attention import torch_impl as masked
from . import stencil


def unsupported(*tensors: Tensor) -> str | None:
    """Return None: PyTorch runs tiles on any device."""
    return None


has_statistics = partial(stencil.runs_stencil, masked)
forward = partial(stencil.forward, masked)
backward = partial(stencil.backward, masked)
