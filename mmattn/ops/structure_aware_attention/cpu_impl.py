"""Structure-aware attention on CPUs: three forms, chosen by the size of the call.

No form writes the two maps of N x C x K numbers of the definition. They work on chunks
whose maps stay in cache, and the backward recomputes the maps.
"""

from torch import Tensor

from ..checks import device_reason
from . import cpu_circulant, cpu_fft, cpu_products

CIRCULANT_TOKENS = 64  # with more, N x N products cost more than transforms
PRODUCT_TOKENS = 36  # with fewer, circulant matrices are faster
PRODUCT_HEADS = 48  # of all images; with fewer, matrices of the kernels cost too much
PRODUCT_ROWS, PRODUCT_COLUMNS = 14, 32  # at most; fast transforms win beyond


def unsupported(q: Tensor, *tensors: Tensor) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Return the output and the patterns (B, M, K, N) in the compute dtype."""
    return _form(q, grid).forward(q, k, v, w_a, w_b, bias, grid=grid)


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Return the gradients of q, k, v, the half-spectra w_a and w_b, and the bias."""
    form = _form(q, grid)
    return form.backward(grad, patterns, q, k, v, w_a, w_b, bias, grid=grid)


def _form(q: Tensor, grid: tuple[int, ...]):
    B, N, M, _ = q.shape
    if (
        N > PRODUCT_TOKENS
        and B * M >= PRODUCT_HEADS
        and grid[-1] <= PRODUCT_COLUMNS
        and N // grid[-1] <= PRODUCT_ROWS
    ):
        return cpu_products
    return cpu_circulant if N <= CIRCULANT_TOKENS else cpu_fft
