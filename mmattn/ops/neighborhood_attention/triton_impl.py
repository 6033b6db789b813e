"""Neighborhood attention for GPUs: tiles, and on large maps masked attention's kernels.

The kernels are those of the stencil in Triton. Tiles are PyTorch's products.
"""

from functools import partial

from torch import Tensor

from ..masked_attention import triton_impl as masked
from . import stencil


def unsupported(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> str | None:
    """Return why this backend does not support a call, or None."""
    return masked.unsupported(q)


runs_stencil = partial(stencil.runs_stencil, masked)
forward = partial(stencil.forward, masked)
backward = partial(stencil.backward, masked)
