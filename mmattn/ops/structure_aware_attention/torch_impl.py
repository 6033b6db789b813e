"""Structure-aware attention on CPUs: three forms, chosen by the size of the call.

No form writes the two maps of N x C x K numbers of the definition. They work on chunks
whose maps stay in cache, and the backward recomputes the maps.
"""

import torch
from torch import Tensor

from ..checks import device_reason
from . import torch_circulant, torch_fft, torch_products

CIRCULANT_TOKENS = 64  # with more, N x N products cost more than transforms
PRODUCT_TOKENS = 36  # with fewer, circulant matrices are faster
PRODUCT_HEADS = 48  # of all images; with fewer, matrices of the kernels cost too much
PRODUCT_ROWS, PRODUCT_COLUMNS = 14, 32  # at most; fast transforms win beyond


def unsupported(q: Tensor, *tensors: Tensor) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Return the output and the patterns (B, M, K, N) in the compute dtype."""
    w_a, w_b = (torch.view_as_complex(w.contiguous()) for w in (w_a, w_b))
    return _form(q, grid).forward(q, k, v, w_a, w_b, bias, grid=grid)


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Return the gradients of q, k, v, the parts of w_a and w_b, and the bias."""
    w_a, w_b = (torch.view_as_complex(w.contiguous()) for w in (w_a, w_b))
    form = _form(q, grid)
    grads = form.backward(grad, patterns, q, k, v, w_a, w_b, bias, grid=grid)
    return tuple(torch.view_as_real(x) if x.is_complex() else x for x in grads)


def _form(q: Tensor, grid: tuple[int, ...]):
    B, N, M, _ = q.shape
    if (
        N > PRODUCT_TOKENS
        and B * M >= PRODUCT_HEADS
        and grid[-1] <= PRODUCT_COLUMNS
        and N // grid[-1] <= PRODUCT_ROWS
    ):
        return torch_products
    return torch_circulant if N <= CIRCULANT_TOKENS else torch_fft
