"""Masked attention on CPUs: dense on small maps, by the stencil on others."""

import torch
from torch import Tensor

from ..checks import device_reason
from . import torch_dense, torch_soft, torch_stencil

# Up to this many tokens, N x N products are the fastest.
DENSE_TOKENS = 256
SOFT_DENSE_TOKENS = 600

# Up to this many elements of the (B, M, N, N) maps, autograd of the reference is faster.
REFERENCE_ELEMENTS = 300_000


def prefers_reference(q: Tensor, *tensors: Tensor | None, needs_grad: bool) -> bool:
    """Return whether a forward and a backward of the reference are faster.

    Compiled graphs, which may run at all sizes, keep the kernel.
    """
    if not needs_grad or torch.compiler.is_compiling():
        return False
    B, N, M, _ = q.shape
    return B * M * N**2 <= REFERENCE_ELEMENTS


def unsupported(q: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


def forward(q, k, v, bias, alpha, **stencil):
    """Return the output and each row's log of the sum of exponentials (B, M, N)."""
    if _is_small(q, alpha, **stencil):
        return torch_dense.forward(q, k, v, bias, alpha, **stencil)
    if alpha is not None:
        return torch_soft.forward(q, k, v, alpha, **stencil)
    return torch_stencil.forward(q, k, v, bias, **stencil)


def backward(grad, out, lse, q, k, v, bias, alpha, **stencil):
    """Return the gradients of q, k, v, bias and alpha."""
    if _is_small(q, alpha, **stencil):
        grads = torch_dense.backward(grad, out, lse, q, k, v, bias, alpha, **stencil)
    elif alpha is not None:
        grads = torch_soft.backward(grad, out, lse, q, k, v, alpha, **stencil)
    else:
        grads = torch_stencil.backward(grad, lse, q, k, v, bias, **stencil)
    *grads, dbias, dalpha = grads
    return (
        *grads,
        None if bias is None else dbias.to(bias.dtype),
        None if alpha is None else dalpha.to(alpha.dtype),
    )


def _is_small(q, alpha, *, kernel_size, num_special, **stencil) -> bool:
    """Return whether N x N products are faster than the stencil.

    The stencil requires maps with more tokens than a row has neighbors.
    """
    tokens = DENSE_TOKENS if alpha is None else SOFT_DENSE_TOKENS
    return q.shape[1] <= max(tokens, kernel_size**2 + num_special)
