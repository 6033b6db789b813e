"""Pieces of the work that fit the cache: heads of images, then queries and keys."""

import math
from collections.abc import Iterator
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


class Scratch:
    """Reuse memory, since the first access to newly allocated pages is slow."""

    def __init__(self, like: Tensor):
        self.like, self.buffers = like, {}

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return an uninitialized tensor in the memory that last had this name."""
        size = math.prod(shape)
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = torch.empty(
                size, dtype=dtype or self.like.dtype, device=self.like.device
            )
        return self.buffers[name][:size].view(shape)


def make_chunks(batch: int, heads: int, pairs: int, elements: int) -> Iterator[Chunk]:
    """Yield chunks of heads and images; a plane has `pairs` of a query and a key."""
    planes = max(1, elements // pairs)
    for images in spans(batch, max(1, planes // heads)):
        for some in spans(heads, planes):
            yield Chunk(images, some)


def spans(length: int, longest: int) -> list[slice]:
    """Split `length` into as few slices as possible, of nearly equal lengths."""
    count = -(-length // longest)
    ends = [length * i // max(count, 1) for i in range(count + 1)]
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]
