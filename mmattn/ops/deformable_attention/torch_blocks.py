"""Pieces of the work that fit the cache: heads of images, then queries and keys."""

from typing import NamedTuple

import torch
from torch import Tensor


class Chunk(NamedTuple):
    """Hold some heads of some images: P planes that are computed at once."""

    images: slice
    heads: slice

    def planes(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Copy the planes of (B, n, M, D) to a contiguous (P, n, D)."""
        x = x[self.images, :, self.heads].transpose(1, 2)
        x = x.to(dtype, copy=True, memory_format=torch.contiguous_format)
        return x.flatten(0, 1)

    def positions(
        self, positions: Tensor, num_heads: int, dtype: torch.dtype
    ) -> Tensor:
        """Return the positions (P, K, 2) of each plane, from (B, G, K, 2)."""
        x = positions[self.images].to(dtype)
        x = x.repeat_interleave(num_heads // x.shape[1], 1)
        return x[:, self.heads].flatten(0, 1)

    def split(self, x: Tensor) -> Tensor:
        """Reshape (P, ...) to (images, heads, ...)."""
        return x.unflatten(0, (self.images.stop - self.images.start, -1))
