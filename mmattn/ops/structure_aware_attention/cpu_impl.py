"""Structure-aware attention on CPUs, by transforms, or by matrices on tiny grids.

Neither form writes the two maps of N x C x K numbers of the definition. They work on
chunks of heads whose maps stay in cache, and the backward recomputes the maps.
"""

from torch import Tensor

from ..checks import device_reason
from . import cpu_circulant, cpu_fft

CIRCULANT_TOKENS = 64  # with more, N x N products cost more than transforms


def unsupported(q: Tensor, *tensors: Tensor) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Return the output and the patterns (B, M, K, N) in the compute dtype."""
    return _form(q).forward(q, k, v, w_a, w_b, bias, grid=grid)


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Return the gradients of q, k, v, the half-spectra w_a and w_b, and the bias."""
    return _form(q).backward(grad, patterns, q, k, v, w_a, w_b, bias, grid=grid)


def _form(q: Tensor):
    return cpu_circulant if q.shape[1] <= CIRCULANT_TOKENS else cpu_fft
