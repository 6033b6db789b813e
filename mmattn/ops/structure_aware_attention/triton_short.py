"""Launchers of the kernels for short grids, see triton_circulant.py."""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..triton import launch
from .spectrum import irfft_grid, rfft_grid

MAX_PLACES = 64  # of a part
MAX_MATRICES = 2**24  # numbers of the matrices of all kernels
ROWS = 64  # of planes that a program splits
# By the precision of products, the capability and the number of parts.
TILES = launch.TileTable('structure_aware_attention.TILES', {  # heads, warps
    ('tf32', 80, 1): (64, 4), ('tf32', 80, 2): (32, 8), ('tf32', 80, 4): (16, 8),
    ('tf32', 90, 1): (64, 4), ('tf32', 90, 2): (64, 8), ('tf32', 90, 4): (64, 8),
    ('tf32x3', 80, 1): (32, 4), ('tf32x3', 90, 1): (64, 4),
})  # fmt: skip


class Parts(NamedTuple):
    """Hold what kernels of one grid are launched with."""

    H: int
    W: int
    P: int
    PW: int
    NP: int
    precision: str

    @property
    def constants(self) -> dict:
        return dict(P=self.P, PW=self.PW, NP=self.NP, PRECISION=self.precision)

    def tiles(self, x: Tensor) -> tuple[int, dict]:
        """Return the heads of a tile, and the constants and options of its kernels."""
        BR, num_warps = TILES[self.precision, launch.capability(x), self.P]
        options = dict(num_warps=num_warps, num_stages=1, **launch.COMPILER)
        return BR, dict(self.constants, BR=BR, **options)


def parts_of(grid: tuple[int, ...], D: int, K: int, q: Tensor) -> Parts | None:
    """Return how these kernels split a grid, or None if they do not support it.

    In fp32 the three products of several parts would spill.
    """
    H, W = grid if len(grid) == 2 else (1, prod(grid))
    precision = launch.precision(q)
    splits = ((1, 1), (1, 2), (2, 1), (2, 2)) if precision == 'tf32' else ((1, 1),)
    for PH, PW in splits:
        P, size = PH * PW, H * W // (PH * PW)
        if len(grid) <= 2 and size <= MAX_PLACES and H % PH == W % PW == 0:
            NP = launch.power_of_two(size, 16)
            if D * K * P * NP * NP <= MAX_MATRICES:
                return Parts(H, W, P, PW, NP, precision)
    return None


def forward(planes, w_a, w_b, bias, patterns, grid, g: Parts) -> Tensor:
    """Write the patterns; return planes (B, M, D, N) of the output."""
    (k, v), (a, b) = _parts(planes[1:], g), _matrices(w_a, w_b, grid, g)
    _convolve(g, k, a, planes[0], None, patterns, over_channels=True)
    y = torch.empty_like(planes[0])
    _convolve(g, v, b, patterns, bias, y)
    return y


def backward(planes, dy, w_a, w_b, bias, patterns, grid, g: Parts):
    """Return gradients of planes, half-spectra of those of kernels, and the bias'."""
    (k, v), (a, b) = _parts(planes[1:], g), _matrices(w_a, w_b, grid, g)
    dpatterns, grads = torch.empty_like(patterns), torch.empty_like(planes)
    _convolve(g, v, b, dy, bias, dpatterns, over_channels=True)
    _convolve(g, k, a, dpatterns, None, grads[0])
    _mirrored(g, dpatterns, planes[0], a, grads[1])
    _mirrored(g, patterns, dy, b, grads[2], shared=True)
    dbias = torch.empty_like(bias)
    dw_a = _kernel_gradients(g, dpatterns, planes[0], k)
    dw_b = _kernel_gradients(g, patterns, dy, v, dbias).sum(0)
    dw_a, dw_b = (
        torch.view_as_real(rfft_grid(dw.unflatten(-1, grid), grid))
        for dw in (dw_a, dw_b)
    )
    return grads, dw_a, dw_b, dbias


def _parts(planes: Tensor, g: Parts) -> Tensor:
    """Return the parts (..., P, NP) of planes (..., N)."""
    from .triton_circulant import _parts_kernel

    out = launch.empty(planes, *planes.shape[:-1], g.P, g.NP)
    rows = planes[..., 0].numel()
    _parts_kernel[(launch.cdiv(rows, ROWS),)](
        planes, out, rows, g.H, g.W, BR=ROWS, num_warps=4, **g.constants
    )
    return out


def _matrices(w_a: Tensor, w_b: Tensor, grid, g: Parts) -> tuple[Tensor, Tensor]:
    """Return the matrices (items, P, NP, NP) of kernels, given half-spectra."""
    from .triton_circulant import _matrices_kernel

    spectra = torch.cat([w_a.flatten(0, 1), w_b])
    w = irfft_grid(torch.view_as_complex(spectra), grid).contiguous()
    out = launch.empty(w, len(w), g.P, g.NP, g.NP)
    _matrices_kernel[(len(w),)](w, out, g.H, g.W, num_warps=8, **g.constants)
    return out[: -len(w_b)], out[-len(w_b) :]


def _convolve(g: Parts, x, matrices, factors, bias, out, over_channels: bool = False):
    """Write the sum of factors * (x * w + bias) over channels or patterns to `out`."""
    from .triton_circulant import _convolve_kernel

    B, M, D = x.shape[:3]
    K = out.shape[2] if over_channels else factors.shape[2]
    BR, constants = g.tiles(out)
    _convolve_kernel[(launch.cdiv(B * M, BR) * out.shape[2],)](
        x, matrices, factors, bias, out, D, K, B * M, g.H, g.W,
        PATTERNS=over_channels, **constants,
    )  # fmt: skip


def _mirrored(g: Parts, patterns, channels, matrices, out, shared: bool = False):
    """Write sums over patterns of products, convolved with mirrored kernels."""
    from .triton_circulant import _bwd_convolve_kernel

    B, M, K, _ = patterns.shape
    D = channels.shape[2]
    BR, constants = g.tiles(out)
    _bwd_convolve_kernel[(launch.cdiv(B * M, BR) * D,)](
        patterns, channels, matrices, out, D, K, B * M, g.H, g.W, 1.0 / g.P,
        SHARED=shared, **constants,
    )  # fmt: skip


def _kernel_gradients(g: Parts, patterns, channels, parts, dbias=None) -> Tensor:
    """Return gradients (D, K, N) of kernels that parts were convolved with.

    Those of the bias are written to `dbias`.
    """
    from .triton_circulant import _bwd_kernels_kernel, _bwd_matrices_kernel

    B, M, K, N = patterns.shape
    D = channels.shape[2]
    _, constants = g.tiles(parts)
    matrices = launch.empty(parts, D, K, g.P, g.NP, g.NP)
    _bwd_matrices_kernel[(D * K,)](
        patterns, channels, parts, matrices, dbias, D, K, B * M, g.H, g.W, **constants
    )
    out = launch.empty(parts, D, K, N)
    _bwd_kernels_kernel[(D * K,)](
        matrices, out, g.H, g.W, P=g.P, PW=g.PW, NP=g.NP,
        BLOCK=launch.power_of_two(N, 32), num_warps=4,
    )  # fmt: skip
    return out
