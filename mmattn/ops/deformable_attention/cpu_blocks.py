"""How the work is cut: heads of images, and of these, rows of queries and keys."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Chunk(NamedTuple):
    """Some heads of some images: P planes, which are computed at once."""

    images: slice
    heads: slice

    def planes(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Of (B, n, M, D), a contiguous copy (P, n, D)."""
        x = x[self.images, :, self.heads].transpose(1, 2)
        x = x.to(dtype, copy=True, memory_format=torch.contiguous_format)
        return x.flatten(0, 1)

    def positions(
        self, positions: Tensor, num_heads: int, dtype: torch.dtype
    ) -> Tensor:
        """Of positions (B, G, K, 2), those of each plane (P, K, 2)."""
        x = positions[self.images].to(dtype)
        x = x.repeat_interleave(num_heads // x.shape[1], 1)
        return x[:, self.heads].flatten(0, 1)

    def split(self, x: Tensor) -> Tensor:
        """(P, ...) to (images, heads, ...)."""
        return x.unflatten(0, (self.images.stop - self.images.start, -1))


class Scratch:
    """Memory that is used again: pages that the system just gave are slow."""

    def __init__(self, like: Tensor):
        self.like, self.buffers = like, {}

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An unset tensor, in the place of the one that last had this name."""
        size = math.prod(shape)
        if name not in self.buffers or len(self.buffers[name]) < size:
            self.buffers[name] = torch.empty(
                size, dtype=dtype or self.like.dtype, device=self.like.device
            )
        return self.buffers[name][:size].view(shape)


def make_chunks(batch: int, heads: int, pairs: int, elements: int) -> Iterator[Chunk]:
    """Chunks of all heads of all images; a plane has `pairs` of a query and a key."""
    planes = max(1, elements // pairs)
    for images in spans(batch, max(1, planes // heads)):
        for some in spans(heads, planes):
            yield Chunk(images, some)


def spans(length: int, longest: int) -> list[slice]:
    """Slices that make up `length`, as few as there can be and of like lengths."""
    count = -(-length // longest)
    ends = [length * i // max(count, 1) for i in range(count + 1)]
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]
