"""Chunks that fit the cache, and the normalization of q and k, on CPUs."""

from collections.abc import Iterator

from torch import Tensor

from .reference import EPS


def slices(count: int, num_elements: int, chunk_elements: int) -> list[slice]:
    """Slice `count` items of `num_elements` each, so that a slice fills a chunk."""
    step = max(1, chunk_elements // max(1, num_elements))
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def image_and_head_slices(
    num_images: int, num_heads: int, num_elements: int, chunk_elements: int
) -> Iterator[tuple[slice, slice]]:
    """Yield chunks of whole images, or of one image's heads.

    A head has `num_elements`.
    """
    for images in slices(num_images, num_heads * num_elements, chunk_elements):
        b = images.stop - images.start
        for heads in slices(num_heads, b * num_elements, chunk_elements):
            yield images, heads


def normalizer(x: Tensor, dim: int) -> Tensor:
    """Return the factor of the L2 normalization."""
    return x.square().sum(dim, keepdim=True).add_(EPS).rsqrt_()


def unnormalized(dy: Tensor, y: Tensor, scale: Tensor, dim: int) -> Tensor:
    """Return the gradient of x, given that of its normalized `y = x * scale`."""
    return (dy - y * (y * dy).sum(dim, keepdim=True)).mul_(scale)
