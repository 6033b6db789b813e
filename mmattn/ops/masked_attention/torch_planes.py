"""Maps laid out in memory so that a neighbor of all tokens is one shift.

A plane is H rows of W + R // 2 numbers between two margins. The margins and the ends of
the rows are 0. An offset (dy, dx) of an R x R mask is then a shift by
dy * (W + R // 2) + dx, and a key outside the map is a 0. Queries are taken in bands of
whole rows, which stay in cache.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..chunks import image_and_head_slices, slices

GROUP_ELEMENTS = 1 << 18  # of the planes of q that are in memory at once
BAND_ELEMENTS = 1 << 18  # of a band of q: 1 MiB in float32


class Planes(NamedTuple):
    """Lay out the patches of an H x W grid for an R x R mask.

    They follow `num_special` tokens.
    """

    H: int
    W: int
    R: int
    num_special: int

    @property
    def stride(self) -> int:
        return self.W + self.R // 2

    @property
    def margin(self) -> int:
        return self.R // 2 * (self.stride + 1)

    @property
    def numel(self) -> int:
        return self.H * self.stride + 2 * self.margin

    @property
    def rows(self) -> slice:
        """Return all rows, as a band."""
        return slice(0, self.H)

    def length(self, band: slice) -> int:
        return (band.stop - band.start) * self.stride

    def bands(self, width: int) -> list[slice]:
        """Return bands that fit the cache where a token has `width` numbers."""
        return slices(self.H, width * self.stride, BAND_ELEMENTS)

    def groups(self, q: Tensor) -> Iterator[tuple[slice, slice]]:
        """Return images and heads to load together, of several images or of one."""
        B, _, M, D = q.shape
        return image_and_head_slices(B, M, D * self.numel, GROUP_ELEMENTS)

    def windows(self, x: Tensor, band: slice) -> list[Tensor]:
        """Return views of planes (..., numel), the neighbors of a band by offset."""
        reach = range(-(self.R // 2), self.R // 2 + 1)
        start = self.margin + band.start * self.stride
        return [
            x.narrow(-1, start + dy * self.stride + dx, self.length(band))
            for dy in reach
            for dx in reach
        ]

    def whole(self, x: Tensor) -> Tensor:
        """Return a view of planes without their margins, (..., H * stride)."""
        return x.narrow(-1, self.margin, self.H * self.stride)

    def patches(self, x: Tensor) -> Tensor:
        """Return a view of a band (..., rows * stride) without ends, (..., rows, W)."""
        return x.unflatten(-1, (-1, self.stride))[..., : self.W]

    def ends(self, x: Tensor) -> Tensor:
        """Return a view of the ends of a band's rows."""
        return x.unflatten(-1, (-1, self.stride))[..., self.W :]

    def outside(self, band: slice) -> Tensor:
        """Return which neighbors are outside the map, (R^2, 1, rows * stride)."""
        marks = torch.ones(self.numel, dtype=torch.bool)
        self.patches(self.whole(marks)).fill_(False)
        marks = torch.stack(self.windows(marks, band))
        self.ends(marks).fill_(False)
        return marks[:, None]

    def blank(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return a band of uninitialized patches between ends of 0."""
        band = torch.empty(shape, dtype=dtype)
        self.ends(band).zero_()
        return band

    def load(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Load (b, N, h, D) as planes (b * h, D, numel) and tokens (b * h, x, D)."""
        b, _, h, D = x.shape
        planes = torch.empty(b * h, D, self.numel, dtype=dtype)
        for start in (0, self.numel - self.margin):
            planes.narrow(-1, start, self.margin).zero_()
        whole = self.whole(planes)
        self.ends(whole).zero_()
        self.read(x, self.rows, whole)
        return planes, self.special(x, dtype)

    def special(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the special tokens of (b, N, h, D), (b * h, x, D)."""
        return x[:, : self.num_special].transpose(1, 2).to(dtype).flatten(0, 1)

    def store_special(self, out: Tensor, x: Tensor):
        """Store special tokens (b * h, x, D) in (b, N, h, D)."""
        b, _, h, _ = out.shape
        out[:, : self.num_special] = x.unflatten(0, (b, h)).transpose(1, 2)

    def read(self, x: Tensor, band: slice, out: Tensor):
        """Copy a band of (b, N, h, D) to the patches of (b * h, D, length)."""
        x = self._band(x, band)
        self.patches(out).unflatten(0, (x.shape[0], x.shape[1])).copy_(x)

    def write(self, out: Tensor, band: slice, x: Tensor):
        """Copy the patches of (b * h, D, length) to a band of (b, N, h, D)."""
        out = self._band(out, band)
        out.copy_(self.patches(x).unflatten(0, (out.shape[0], out.shape[1])))

    def _band(self, x: Tensor, band: slice) -> Tensor:
        first, last = (self.num_special + y * self.W for y in (band.start, band.stop))
        return x[:, first:last].unflatten(1, (-1, self.W)).permute(0, 3, 4, 1, 2)
