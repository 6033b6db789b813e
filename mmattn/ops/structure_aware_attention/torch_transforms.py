"""Convolutions on a grid of short sides, as products with small matrices.

The grid is a matrix of H rows, which all sides but the last make up, and W columns. A
product makes the half-spectrum over the columns, of F frequencies. Another one
multiplies by the spectra of the kernels and inverts the transform over the rows, for
all patterns at once. Images and heads are the last axis, r.
"""

import functools
from math import prod

import torch
from torch import Tensor

from .spectrum import column_weights


class Transforms:
    """Products with the matrices of a grid's Fourier transforms.

    Args:
        grid: sides of the grid.
        dtype: complex dtype of the kernels' half-spectra.
    """

    def __init__(self, grid: tuple[int, ...], dtype: torch.dtype):
        self.grid, self.W, self.H = grid, grid[-1], prod(grid[:-1])
        self.F = self.W // 2 + 1
        self.columns, self.inverse_columns, self.rows, self.inverse_rows = _matrices(
            grid, dtype
        )

    def spectra(self, x: Tensor) -> Tensor:
        """Transform (D, W, H, r) to spectra (D, F, 2H, r).

        Their rows are frequencies, with real and imaginary parts in turn.
        """
        D, _, H, r = x.shape
        x = self.columns.T.expand(D, -1, -1).bmm(x.flatten(2)).view(-1, 2 * H, r)
        return self.rows.expand(len(x), -1, -1).bmm(x).view(D, -1, 2 * H, r)

    def backward_of_spectra(self, dspectra: Tensor) -> Tensor:
        """Return the gradient (D, W, H, r) of values, given that of their spectra."""
        D, F, _, r = dspectra.shape
        dx = self.rows.T.expand(D * F, -1, -1).bmm(dspectra.flatten(0, 1))
        dx = self.columns.expand(D, -1, -1).bmm(dx.view(D, 2 * F, -1))
        return dx.view(D, self.W, self.H, r)

    def matrices(self, w: Tensor) -> Tensor:
        """Return matrices (s, F, 2 * K * H, 2H) of half-spectra (s, K, *half).

        They multiply the spectrum of a channel by those of the kernels and invert the
        transform over the rows.
        """
        s, K, *_, F = w.shape
        w = w.conj_physical().reshape(s, K, self.H, F).permute(0, 3, 1, 2).contiguous()
        m = w.new_empty(s, F, 2, K, self.H, self.H)
        torch.mul(self.inverse_rows, w[:, :, None, :, None], out=m)
        return torch.view_as_real(m).view(s, F, -1, 2 * self.H)

    def backward_of_matrices(self, dm: Tensor) -> Tensor:
        """Return the gradient of half-spectra, given that of their matrices."""
        s, F, _, _ = dm.shape
        dm = torch.view_as_complex(dm.view(s, F, 2, -1, self.H, self.H, 2))
        # Not the lazy conj(), which is dropped where PyTorch runs a graph as it traces.
        dm = dm * self.inverse_rows.conj_physical()
        dw = dm.sum((2, 4)).conj_physical()  # (s, F, K, H)
        return dw.permute(0, 2, 3, 1).reshape(s, -1, *self.grid[:-1], F)

    def buffers(self, s: int, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory for s channels, each of the shape (K, W, H, r) of `p`.

        It is for spectra over the columns, and for values.
        """
        K, _, H, r = p.shape
        return p.new_empty(s, self.F, 2 * K * H, r), p.new_empty(s, *p.shape)

    def convolve(
        self, spectra: Tensor, m: Tensor, buffers: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Convolve channels with kernels.

        Args:
            spectra: of channels, shape (s, F, 2H, r).
            m: `matrices` of s half-spectra, or of one that the channels share.
            buffers: of at least s channels; they are overwritten.

        Returns:
            Values (s, K, W, H, r), in the second buffer.
        """
        s, F = spectra.shape[:2]
        z, g = (x[:s] for x in buffers)
        m = m.expand(s, -1, -1, -1).flatten(0, 1)
        torch.bmm(m, spectra.flatten(0, 1), out=z.flatten(0, 1))
        inverse = self.inverse_columns.expand(g.shape[1], -1, -1)
        # A product for each pattern: threads then share out patterns, as sums do.
        for z_c, g_c in zip(z, g.flatten(3), strict=True):
            z_c = z_c.view(2 * F, len(inverse), -1).transpose(0, 1)  # (K, 2F, H * r)
            torch.bmm(inverse, z_c, out=g_c)
        return g

    def backward_of_convolve(
        self,
        dg: Tensor,
        spectra: Tensor,
        m: Tensor,
        dm: Tensor,
        buffers: tuple[Tensor, Tensor],
    ):
        """Overwrite `spectra` with their gradient, and add that of `m` to `dm`.

        The gradient of the values has the shape (s, W, K, H, r). The first buffer is
        overwritten.
        """
        s = len(spectra)
        dz = buffers[0][:s]
        inverse = self.inverse_columns.T.expand(s, -1, -1)
        torch.bmm(inverse, dg.flatten(2), out=dz.view(s, 2 * self.F, -1))
        dms = dm.expand(s, -1, -1, -1)
        for dm_c, dz_c, x in zip(dms, dz, spectra, strict=True):
            dm_c.baddbmm_(dz_c, x.mT)
        m = m.expand(s, -1, -1, -1).flatten(0, 1)
        torch.bmm(m.mT, dz.flatten(0, 1), out=spectra.flatten(0, 1))


@functools.lru_cache(maxsize=32)
def _matrices(grid: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the matrices of the transforms over columns and over rows.

    The shapes are (W, 2F) there and back, (2H, 2H) and (1, 1, 2, 1, H, H). The last is
    complex: its real form is the conjugate of a product's first row and, times i, of
    the second.
    """
    *leading, W = grid
    H = prod(leading)
    columns = torch.view_as_real(torch.fft.rfft(torch.eye(W, dtype=torch.float64)))
    columns = columns.flatten(1)  # (W, 2F)
    weights = column_weights((W,), columns).repeat_interleave(2)
    rows = torch.eye(H, dtype=torch.complex128).view(H, *(leading or [1]))
    rows = torch.fft.fftn(rows, dim=tuple(range(1, rows.dim()))).view(H, H)
    parts = torch.stack([rows, 1j * rows])  # (2, frequency, value): symmetric
    real = torch.view_as_real(parts).permute(1, 3, 0, 2).reshape(2 * H, 2 * H)
    parts_dtype = torch.empty((), dtype=dtype).real.dtype
    return (
        columns.to(parts_dtype),
        (columns * weights).to(parts_dtype),
        real.to(parts_dtype),
        (parts / H)[None, None, :, None].to(dtype),
    )
