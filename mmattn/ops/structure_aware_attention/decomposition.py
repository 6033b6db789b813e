"""Structure-aware attention in real matrix products, for exported graphs."""

from math import prod

import torch
from torch import Tensor

from ..common.precision import compute_dtype
from .real_transforms import irfft_parts, rfft_parts
from .reference import l2_normalize

ONE_PRODUCT_TOKENS = 64  # with more, a product for each side is faster


def structure_aware_attention_decomposition(q, k, v, w_a, w_b, bias, *, grid) -> Tensor:
    """Return `mmattn.ops.structure_aware_attention` of the same arguments.

    w_a and w_b are half-spectra whose last axis has real and imaginary parts. The
    largest tensors have (B, M, D, K, N) numbers.
    """
    dtype = q.dtype
    q, k, v = (x.to(compute_dtype(dtype)) for x in (q, k, v))
    q, k, v = (x.permute(0, 2, 3, 1) for x in (l2_normalize(q), l2_normalize(k), v))
    transforms = Transforms(grid, like=q)
    w_a, w_b = (transforms.flat_parts(w) for w in (w_a, w_b))
    g_a = transforms.convolve(k.unsqueeze(3), w_a)  # (B, M, D, K, N)
    patterns = (q.unsqueeze(3) * g_a).sum(2)  # (B, M, K, N)
    g_b = transforms.convolve(v.unsqueeze(3), w_b)
    out = (patterns.unsqueeze(2) * g_b).sum(3) + bias @ patterns
    return out.permute(0, 3, 1, 2).to(dtype)


class Transforms:
    """Circular convolutions on a grid.

    Args:
        grid: sides of the grid, which may be symbolic.
        like: tensor of the dtype and device of the matrices.
    """

    def __init__(self, grid: tuple[int, ...], *, like: Tensor):
        self.grid = grid
        self.half = (*grid[:-1], grid[-1] // 2 + 1)
        self.matrices = None
        N = prod(grid)
        if isinstance(N, int) and N <= ONE_PRODUCT_TOKENS:
            size = 2 * prod(self.half)
            places, frequencies = (
                torch.eye(n, dtype=like.dtype, device=like.device) for n in (N, size)
            )
            self.matrices = self.forward(places), self.inverse(frequencies)

    def forward(self, x: Tensor) -> Tensor:
        """Transform (..., N) to parts (..., 2 * number of frequencies)."""
        if self.matrices:
            return x @ self.matrices[0]
        parts = rfft_parts(x.unflatten(-1, self.grid), self.grid)
        return parts.flatten(-1 - len(self.grid))

    def inverse(self, parts: Tensor) -> Tensor:
        """Invert `forward`."""
        if self.matrices:
            return parts @ self.matrices[1]
        parts = parts.unflatten(-1, (2, *self.half))
        return irfft_parts(parts, self.grid).flatten(-len(self.grid))

    def convolve(self, x: Tensor, kernels: tuple[Tensor, Tensor]) -> Tensor:
        """Convolve (..., N) with what `flat_parts` returns, which is broadcast."""
        x = self.forward(x)
        half = x.shape[-1] // 2
        swapped = torch.cat([x[..., half:], x[..., :half]], -1)
        same, crossed = kernels
        return self.inverse(x * same + swapped * crossed)

    def flat_parts(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of a spectrum and of its swapped parts, for `convolve`.

        The shape of `w` is (..., *half, 2).
        """
        real, imag = w.flatten(-1 - len(self.grid), -2).unbind(-1)
        return torch.cat([real, real], -1), torch.cat([-imag, imag], -1)
