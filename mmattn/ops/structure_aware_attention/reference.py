"""Structure-aware attention as the paper defines it, and as explicit matrices.

Kwon, Castro, Marin-Jimenez, Guil and Alahari, "Lightweight Structure-Aware Attention
for Visual Understanding", https://arxiv.org/abs/2211.16289, equations 12 to 14. No
official code is known. The layout of the kernels over heads and channels is inferred
from the paper's tables.
"""

import torch
from torch import Tensor

from ..common.precision import compute_dtype
from .spectrum import irfft_grid, rfft_grid

EPS = 1e-6


def l2_normalize(x: Tensor) -> Tensor:
    """Return `x / sqrt(sum_d x_d^2 + eps)` over the last axis."""
    return x * (x.square().sum(-1, keepdim=True) + EPS).rsqrt()


def structure_aware_attention_reference(q, k, v, w_a, w_b, bias, *, grid) -> Tensor:
    """Return `mmattn.ops.structure_aware_attention` of the same arguments.

    w_a and w_b are the real and imaginary parts of half-spectra, on a last axis.
    """
    dtype = q.dtype
    w_a, w_b = (torch.view_as_complex(w.contiguous()) for w in (w_a, w_b))
    q, k, v = (x.to(compute_dtype(dtype)) for x in (q, k, v))
    q, k, v = (
        x.permute(0, 2, 3, 1).unflatten(-1, grid)  # (B, M, D, *grid)
        for x in (l2_normalize(q), l2_normalize(k), v)
    )
    k, v = (rfft_grid(x, grid).unsqueeze(3) for x in (k, v))  # (B, M, D, 1, *half)
    g_a = irfft_grid(k * w_a, grid)  # (B, M, D, K, *grid)
    g_b = irfft_grid(v * w_b, grid)  # (B, M, D, K, *grid)
    patterns = torch.einsum('bmd...,bmdk...->bmk...', q, g_a)
    bias = bias.reshape(*bias.shape, *(1,) * len(grid))  # (D, K, 1, ...)
    out = torch.einsum('bmk...,bmdk...->bmd...', patterns, g_b + bias)
    return out.flatten(3).permute(0, 3, 1, 2).to(dtype)


def block_circulant(w: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return matrices (..., N, N) that convolve circularly with `w` (..., *grid).

    Entry (i, n) is the tap at the grid's offset from n to i, modulo the grid.
    """
    axes = [torch.arange(side, device=w.device) for side in grid]
    positions = torch.cartesian_prod(*axes).view(-1, len(grid))  # (N, dims)
    offsets = positions[:, None] - positions[None]  # (N, N, dims)
    offsets = offsets.remainder(torch.tensor(grid, device=w.device))
    return w[(..., *offsets.unbind(-1))]


def attention_kernels(
    q: Tensor, k: Tensor, w_a: Tensor, w_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the patterns, and the kernel that weighs the values for each query.

    Args:
        q, k: shape (B, N, M, D).
        w_a, w_b: kernels (D, K, *grid) and (K, *grid), real.

    Returns:
        Patterns (B, M, K, N), and kernels (B, M, N, N), whose rows are queries.
    """
    grid = tuple(w_b.shape[1:])
    r_a, r_b = block_circulant(w_a, grid), block_circulant(w_b, grid)  # (.., N, N)
    q, k = l2_normalize(q), l2_normalize(k)
    patterns = torch.einsum('bimd,bnmd,dkin->bmki', q, k, r_a)
    return patterns, torch.einsum('bmki,kij->bmij', patterns, r_b)


def structure_aware_attention_circulant(
    q: Tensor, k: Tensor, v: Tensor, w_a: Tensor, w_b: Tensor, bias: Tensor
) -> Tensor:
    """Return the same result by explicit N x N matrices; w_a and w_b are kernels."""
    patterns, kernels = attention_kernels(q, k, w_a, w_b)
    out = torch.einsum('bmij,bjmd->bimd', kernels, v)
    return out + torch.einsum('bmki,dk->bimd', patterns, bias)
