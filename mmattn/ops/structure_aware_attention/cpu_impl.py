"""Structure-aware attention for CPUs: one pattern at a time.

The two maps of N x C x K numbers of the definition are never written: each pattern's
maps are made, used and overwritten. The backward makes them anew from q, k, v and the
patterns, and sums the gradients of the kernels as spectra.
"""

import torch
from torch import Tensor

from .reference import EPS
from .spectrum import column_weights, compute_dtype, irfft_grid, rfft_grid


def unsupported(q: Tensor, *tensors: Tensor) -> str | None:
    if q.device.type not in ('cpu', 'meta'):
        return f'it runs on the CPU, the tensors are on {q.device}'
    return None


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Returns the output and the patterns (B, M, K, N) in the compute dtype."""
    B, N, M, D = q.shape
    K = bias.shape[1]
    q_n, k_n, v_n, _, _ = _normalized(q, k, v, grid)
    k_hat, v_hat = rfft_grid(k_n, grid), rfft_grid(v_n, grid)
    patterns = q_n.new_empty(B, M, K, *grid)
    out = torch.zeros_like(q_n)
    for i in range(K):
        pattern = patterns[:, :, i]
        torch.sum(irfft_grid(k_hat * w_a[:, i], grid).mul_(q_n), dim=2, out=pattern)
        g_b = irfft_grid(v_hat * w_b[i], grid)
        g_b += bias[:, i].view(D, *(1,) * len(grid))
        out.addcmul_(g_b, pattern.unsqueeze(2))
    return _tokens_first(out).to(q.dtype), patterns.flatten(3)


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Gradients of q, k, v, of the half-spectra w_a and w_b, and of the bias."""
    B, N, M, D = q.shape
    K = bias.shape[1]
    q_n, k_n, v_n, q_scale, k_scale = _normalized(q, k, v, grid)
    grad = _grid_last(grad.to(q_n.dtype), grid)
    patterns = patterns.unflatten(-1, grid)
    k_hat, v_hat = rfft_grid(k_n, grid), rfft_grid(v_n, grid)
    dq = torch.zeros_like(q_n)
    dk_hat, dv_hat = torch.zeros_like(k_hat), torch.zeros_like(v_hat)
    dw_a, dw_b, dbias = (torch.empty_like(x) for x in (w_a, w_b, bias))
    for i in range(K):
        pattern = patterns[:, :, i].unsqueeze(2)  # (B, M, 1, *grid)
        product = pattern * grad  # (B, M, D, *grid)
        dbias[:, i] = product.flatten(3).sum(dim=(0, 1, 3))
        f = rfft_grid(product, grid)
        dv_hat.addcmul_(f, w_b[i].conj())
        dw_b[i] = (v_hat.conj() * f).sum(dim=(0, 1, 2))
        g_b = irfft_grid(v_hat * w_b[i], grid)
        g_b += bias[:, i].view(D, *(1,) * len(grid))
        dpattern = g_b.mul_(grad).sum(dim=2, keepdim=True)  # (B, M, 1, *grid)
        dq.addcmul_(irfft_grid(k_hat * w_a[:, i], grid), dpattern)
        f = rfft_grid(dpattern * q_n, grid)
        dk_hat.addcmul_(f, w_a[:, i].conj())
        dw_a[:, i] = (k_hat.conj() * f).sum(dim=(0, 1))
    weights = column_weights(grid, w_a)
    dk, dv = irfft_grid(dk_hat, grid), irfft_grid(dv_hat, grid)
    dq, dk = _unnormalize(dq, q_n, q_scale), _unnormalize(dk, k_n, k_scale)
    dq, dk, dv = (_tokens_first(x).to(q.dtype) for x in (dq, dk, dv))
    return dq, dk, dv, dw_a * weights, dw_b * weights, dbias


def _grid_last(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """(B, N, M, D) to (B, M, D, *grid), contiguous."""
    return x.permute(0, 2, 3, 1).contiguous().unflatten(-1, grid)


def _tokens_first(x: Tensor) -> Tensor:
    """(B, M, D, *grid) to (B, N, M, D), contiguous."""
    return x.flatten(3).permute(0, 3, 1, 2).contiguous()


def _normalized(q, k, v, grid):
    """Unit q and k, and v, with the grid last; and what q and k were multiplied by."""
    dtype = compute_dtype(q.dtype)
    q, k, v = (_grid_last(x.to(dtype), grid) for x in (q, k, v))
    q_scale, k_scale = ((x.square().sum(2, keepdim=True) + EPS).rsqrt() for x in (q, k))
    return q * q_scale, k * k_scale, v, q_scale, k_scale


def _unnormalize(dy: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    """Gradient of x, given that of `y = x * scale`, over axis 2."""
    return scale * (dy - y * (y * dy).sum(2, keepdim=True))
