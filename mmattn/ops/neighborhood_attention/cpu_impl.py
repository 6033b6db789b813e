"""Neighborhood attention for CPUs: tiles, and on large maps masked attention's stencil."""

from functools import partial

from torch import Tensor

from ..checks import device_reason
from ..masked_attention import cpu_impl as masked
from . import stencil


def unsupported(q: Tensor, *tensors: Tensor) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


forward = partial(stencil.forward, masked)
backward = partial(stencil.backward, masked)
