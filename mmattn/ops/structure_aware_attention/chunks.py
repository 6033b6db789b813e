"""What the CPU forms share: chunks that fit the cache, and the norm of q and k."""

from collections.abc import Iterator

from torch import Tensor

from .reference import EPS


def slices(count: int, num_elements: int, chunk_elements: int) -> list[slice]:
    """Slices of `count` things, of `num_elements` each, that fill a chunk together."""
    step = max(1, chunk_elements // max(1, num_elements))
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def image_and_head_slices(
    num_images: int, num_heads: int, num_elements: int, chunk_elements: int
) -> Iterator[tuple[slice, slice]]:
    """Chunks of whole images, or of one image's heads; `num_elements` are a head's."""
    for images in slices(num_images, num_heads * num_elements, chunk_elements):
        b = images.stop - images.start
        for heads in slices(num_heads, b * num_elements, chunk_elements):
            yield images, heads


def normalizer(x: Tensor, dim: int) -> Tensor:
    """What L2 normalization multiplies by."""
    return x.square().sum(dim, keepdim=True).add_(EPS).rsqrt_()


def unnormalized(dy: Tensor, y: Tensor, scale: Tensor, dim: int) -> Tensor:
    """Gradient of x, given that of its normalized `y = x * scale`."""
    return (dy - y * (y * dy).sum(dim, keepdim=True)).mul_(scale)
