"""FLOPs of structure-aware attention, and rows of its kernels."""

import math
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..common.inspection import Attention, Flops
from .reference import l2_normalize
from .spectrum import irfft_grid


def fft_flops(shape: Sequence[int], sides: Sequence[int]) -> int:
    """Count the transforms over `sides` of everything that `shape` holds.

    A transform of N values counts N log2 N multiply-accumulates, whether the values are
    real or complex. The transforms of one call are rounded together.
    """
    return 2 * round(prod(shape) * math.log2(prod(sides)))


def transforms(q, bias, grid) -> int:
    """Count one transform of k and of v, and K back for the products of each."""
    spectra, (_, K) = prod(q), bias
    return 2 * (fft_flops([spectra], grid) + fft_flops([spectra * K], grid))


def contractions(q, bias) -> int:
    """Count q times K convolved keys, and the patterns times K convolved values."""
    return 2 * 2 * prod(q) * bias[1]


def forward_flops(q, k, v, w_a, w_b, bias, grid, *args, **kwargs) -> int:
    """Leave out the products of spectra, as the paper's tables do."""
    return transforms(q, bias, grid) + contractions(q, bias)


def backward_flops(
    grad, patterns, q, k, v, w_a, w_b, bias, grid, *args, **kwargs
) -> int:
    """Count a transform for each one of the forward, and twice its contractions."""
    return transforms(q, bias, grid) + 2 * contractions(q, bias)


FLOPS = Flops(forward_flops, backward_flops, kind='transforms')


def circulant_rows(w: Tensor, cell: Sequence[int]) -> Tensor:
    """Return row `cell` of the matrices that convolve circularly with `w`.

    Entry j of the row is the tap at offset cell - j. `w` and the result have shape
    (..., *grid).
    """
    dims = tuple(range(-len(cell), 0))
    return w.flip(dims).roll([i + 1 for i in cell], dims)


def kernel_rows(
    q: Tensor, k: Tensor, w_a: Tensor, w_b: Tensor, rows: Sequence[int]
) -> Tensor:
    """Return kernels of structure-aware attention: `sum_k p[k, i] R_k[i, :]`.

    Args:
        q, k: shape (N, M, D), as given to the operator.
        w_a, w_b: kernels (D, K, *grid) and (K, *grid), real.
        rows: the queries i, in row-major order of the grid.

    Returns:
        Shape (len(rows), M, N).
    """
    grid = w_b.shape[1:]
    q, k = l2_normalize(q), l2_normalize(k)
    kernels = []
    for i in rows:
        cell = [int(c) for c in torch.unravel_index(torch.tensor(i), grid)]
        r_a, r_b = (circulant_rows(w, cell).flatten(-len(grid)) for w in (w_a, w_b))
        patterns = torch.einsum('md,nmd,dkn->mk', q[i], k, r_a)
        kernels.append(patterns @ r_b)  # (M, N)
    return torch.stack(kernels)


def attention(q, k, v, w_a, w_b, bias, *, grid: Sequence[int]) -> Attention:
    """Return the attention of a call."""
    w_a, w_b = (irfft_grid(torch.view_as_complex(w), tuple(grid)) for w in (w_a, w_b))
    q0, k0 = (x[0].to(w_a.dtype) for x in (q, k))
    return Attention(
        q.shape[:3], lambda rows: kernel_rows(q0, k0, w_a, w_b, rows), is_softmax=False
    )
