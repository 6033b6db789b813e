"""Pieces of the work of a CPU that fit its cache."""

from collections.abc import Iterator


def slices(
    count: int, num_elements: int, chunk_elements: int, minimum: int = 1
) -> list[slice]:
    """Slice items of `num_elements` each, so that a slice has at most a chunk's.

    The slices are as few and as even as they can be, the largest first. Each may have
    `minimum` items.
    """
    most = max(minimum, chunk_elements // max(1, num_elements))
    parts = -(-count // most)
    ends = [-(-count * i // max(parts, 1)) for i in range(parts + 1)]
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


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
