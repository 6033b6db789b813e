"""Structure-aware attention for CPUs: transforms, or matrices where grids are tiny.

Neither form writes the two maps of N x C x K numbers of the definition: they work on
chunks of heads whose maps stay in cache, and the backward makes the maps anew.
"""

from torch import Tensor

from . import cpu_circulant, cpu_fft

CIRCULANT_TOKENS = 64  # with more, N x N products cost more than transforms


def unsupported(q: Tensor, *tensors: Tensor) -> str | None:
    if q.device.type not in ('cpu', 'meta'):
        return f'it runs on the CPU, the tensors are on {q.device}'
    return None


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Returns the output and the patterns (B, M, K, N) in the compute dtype."""
    return _form(q).forward(q, k, v, w_a, w_b, bias, grid=grid)


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Gradients of q, k, v, of the half-spectra w_a and w_b, and of the bias."""
    return _form(q).backward(grad, patterns, q, k, v, w_a, w_b, bias, grid=grid)


def _form(q: Tensor):
    return cpu_circulant if q.shape[1] <= CIRCULANT_TOKENS else cpu_fft
