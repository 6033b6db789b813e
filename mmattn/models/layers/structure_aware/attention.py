"""Structure-aware attention (LiSA) on a channels-last grid."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from mmattn.errors import UserError, check_choice
from mmattn.ops import circular_kernel_spectrum, structure_aware_attention
from mmattn.ops.common.exporting import is_exporting
from mmattn.ops.common.precision import compute_dtype
from mmattn.ops.common.recompute import recomputed
from mmattn.ops.structure_aware_attention import (
    RESIZES,
    hermitian_part,
    irfft_parts,
    resize_circular_kernel,
    resize_half_spectrum,
    rfft_grid,
    rfft_parts,
)

from ..checks import check_heads
from ..pointwise import PointwiseLinear
from .spectrum_cache import SpectrumCache, may_keep

KERNEL_DOMAINS = ('spatial', 'frequency')


def _fit_loaded_kernels(module: nn.Module, state_dict: dict, prefix: str, *args):
    """Fit, before loading, kernels of another grid or domain to the module's.

    `load_state_dict` reports the shapes of kernels that cannot fit. Half-spectra do not
    fit spatial kernels, since their last side does not determine the grid.
    """
    grid = module.grid
    for name, shared in (('w_a', 2), ('w_b', 1)):  # axes before the grid
        loaded, own = state_dict.get(prefix + name), getattr(module, name)
        if loaded is None or loaded.shape == own.shape:
            continue
        if loaded.shape[:shared] != own.shape[:shared]:
            continue
        is_kernel = loaded.dim() == shared + len(grid)
        if module.kernel_domain == 'spatial':
            if is_kernel:
                loaded = resize_circular_kernel(
                    loaded, grid, resize=module.kernel_resize
                )
        elif is_kernel:
            loaded = _to_half_spectrum(loaded, loaded.shape[shared:], grid)
        elif loaded.dim() == own.dim() and loaded.shape[-1] == 2:
            loaded = torch.view_as_real(resize_half_spectrum(_as_complex(loaded), grid))
        state_dict[prefix + name] = loaded


def _to_half_spectrum(w: Tensor, old_grid: Sequence[int], grid: Sequence[int]):
    """Convert kernels (..., *old_grid) to half-spectra on `grid`, real numbers."""
    half = rfft_grid(w.to(compute_dtype(w.dtype)), tuple(old_grid))
    return torch.view_as_real(resize_half_spectrum(half, grid))


def _as_complex(w: Tensor) -> Tensor:
    """Return real and imaginary parts (..., 2) as complex64 or complex128."""
    return torch.view_as_complex(w.to(compute_dtype(w.dtype)).contiguous())


class StructureAwareAttention(nn.Module):
    """Projections around `ops.structure_aware_attention`, and its circular kernels.

    From "Lightweight Structure-Aware Attention for Visual Understanding",
    https://arxiv.org/abs/2211.16289, section 4. The sharing of kernels by the heads and
    the places of biases are inferred from the paper's parameter tables.

    The kernels are made for a grid, and resized for others, at run time and on load. In
    eval mode without gradients, their spectra are cached for the grids seen last.

    Args:
        embed_dims: channels C.
        num_heads: heads M; divides C.
        grid: sides of the grid that the kernels are made for, one to three.
        patterns: structural patterns K.
        qkv_bias, proj_bias: whether the projections have a bias.
        kernel_resize: 'gfnet', 'zero_embed', 'stretch' or 'spectral', see
            `ops.circular_kernel_spectrum`.
        kernel_domain: 'spatial' learns the kernels, 'frequency' their half-spectra, as
            GFNet does: real and imaginary parts (..., H, W // 2 + 1, 2). Spectra are
            initialized from spatial kernels and stand for the same functions; the part
            that no real kernel has is ignored. They require `kernel_resize='gfnet'`.
            Spatial kernels of any grid can be loaded into them.
        fft_dims: 1 convolves over the tokens in row-major order, as the paper's
            pseudo-code does; None over all sides of the grid.
        cache_size: number of grids whose spectra are cached; 0 caches none.
        backend: backend of the operator; None takes the fastest.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Sequence[int],
        *,
        patterns: int = 8,
        qkv_bias: bool = True,
        proj_bias: bool = False,
        kernel_resize: str = 'gfnet',
        kernel_domain: str = 'spatial',
        fft_dims: int | None = None,
        cache_size: int = 1,
        backend: str | None = None,
    ):
        super().__init__()
        check_heads(embed_dims, num_heads)
        if not 1 <= len(grid) <= 3 or min(grid) < 1:
            raise UserError(f'grid must have one to three positive sides, got {grid}')
        if patterns < 1:
            raise UserError(f'patterns must be at least 1, got {patterns}')
        check_choice('kernel_resize', kernel_resize, RESIZES)
        check_choice('kernel_domain', kernel_domain, KERNEL_DOMAINS)
        if kernel_domain == 'frequency' and kernel_resize != 'gfnet':
            raise UserError(
                "kernel_domain='frequency' requires kernel_resize='gfnet', "
                f'got {kernel_resize!r}'
            )
        if fft_dims not in (None, 1):
            raise UserError(f'fft_dims must be 1 or None, got {fft_dims}')
        self.num_heads = num_heads
        self.fft_dims = fft_dims
        self.grid = self._kernel_grid(grid)
        self.kernel_resize = kernel_resize
        self.kernel_domain = kernel_domain
        self.backend = backend
        self.cache = SpectrumCache(cache_size)
        head_dims = embed_dims // num_heads
        self.qkv = PointwiseLinear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        shape = self.grid
        if kernel_domain == 'frequency':
            shape = (*self.grid[:-1], self.grid[-1] // 2 + 1, 2)
        self.w_a = nn.Parameter(torch.empty(head_dims, patterns, *shape))
        self.w_b = nn.Parameter(torch.empty(patterns, *shape))
        self.bias = nn.Parameter(torch.empty(head_dims, patterns))
        self.norm = nn.LayerNorm(embed_dims, eps=1e-6)
        self.proj = PointwiseLinear(embed_dims, embed_dims, bias=proj_bias)
        self.reset_kernels()
        self.register_load_state_dict_pre_hook(_fit_loaded_kernels)

    @torch.no_grad()
    def reset_kernels(self):
        """Draw kernels that keep the scale of the values."""
        std = prod(self.grid) ** -0.5
        for w in (self.w_a, self.w_b):
            if self.kernel_domain == 'spatial':
                nn.init.normal_(w, std=std)
                continue
            shared = w.shape[: -len(self.grid) - 1]
            kernel = torch.empty(*shared, *self.grid, dtype=w.dtype, device=w.device)
            nn.init.normal_(kernel, std=std)
            w.copy_(_to_half_spectrum(kernel, self.grid, self.grid))
        nn.init.normal_(self.bias, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, *grid, C) in and out."""
        B, *sides, C = x.shape
        grid = self._kernel_grid(sides)
        heads = 3, self.num_heads, C // self.num_heads
        q, k, v = self.qkv(x).view(B, prod(sides), *heads).unbind(2)
        w_a, w_b = self.kernels(grid) if is_exporting() else self.spectra(grid)
        out = structure_aware_attention(
            q, k, v, w_a, w_b, self.bias, grid=grid, backend=self.backend
        )  # (B, N, M, D)
        return self.proj(recomputed(self.norm, out.reshape(B, *sides, C)))

    def kernels(self, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the kernels on `grid`, without complex numbers on the way."""
        return tuple(self._resize_kernel(w, grid) for w in (self.w_a, self.w_b))

    def _resize_kernel(self, w: Tensor, grid: tuple[int, ...]) -> Tensor:
        if self.kernel_domain == 'frequency':
            parts = w.to(compute_dtype(w.dtype)).movedim(-1, -1 - len(grid))
        elif self.kernel_resize == 'gfnet':
            parts = rfft_parts(w, self.grid)
        else:
            return resize_circular_kernel(w, grid, resize=self.kernel_resize)
        return irfft_parts(resize_half_spectrum(parts, grid), grid)

    def spectra(self, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return the half-spectra of the kernels on `grid`."""
        kernels = (self.w_a, self.w_b)
        if self.training or not may_keep(kernels):
            return self._make_spectra(kernels, grid)
        return self.cache.get(kernels, grid, self._make_spectra)

    def train(self, mode: bool = True):
        self.cache.clear()
        return super().train(mode)

    def _make_spectra(self, kernels, grid):
        if self.kernel_domain == 'frequency':
            spectra = (resize_half_spectrum(_as_complex(w), grid) for w in kernels)
            return tuple(hermitian_part(half, grid) for half in spectra)
        return tuple(
            circular_kernel_spectrum(w, grid, resize=self.kernel_resize)
            for w in kernels
        )

    def _kernel_grid(self, sides: Sequence[int]) -> tuple[int, ...]:
        return (prod(sides),) if self.fft_dims == 1 else tuple(sides)
