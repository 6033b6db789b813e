"""Follow the pixels of an image through a test pipeline."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mmattn.errors import UserError

from ..images import shown

RESIZES = (
    'FixScaleResize',
    'FixShapeResize',
    'Resize',
    'ResizeEdge',
    'ResizeShortestEdge',
    'ResizeToMultiple',
)


@dataclass
class Placement:
    """Map the pixels of an image file to the pipeline's output."""

    image_size: tuple[int, int]
    size: tuple[int, int]
    scale: tuple[float, float] = (1.0, 1.0)
    offset: tuple[float, float] = (0.0, 0.0)

    def follow(self, transform: str, size: tuple[int, int]):
        """Follow a transform that changes the size of the image."""
        if transform in RESIZES:
            factors = [new / old for new, old in zip(size, self.size, strict=True)]
            self.scale = tuple(np.multiply(self.scale, factors))
            self.offset = tuple(np.multiply(self.offset, factors))
        elif transform == 'CenterCrop' and np.less_equal(size, self.size).all():
            starts = [round((o - n) / 2) for o, n in zip(self.size, size, strict=True)]
            self.offset = tuple(np.subtract(self.offset, starts))
        elif transform != 'Pad':  # padding on the right and below moves no pixel
            raise UserError(
                f'transforms that change the size must be {", ".join(RESIZES)}, '
                f'CenterCrop or Pad, got {transform}'
            )
        self.size = size

    def __call__(self, y: int, x: int) -> tuple[float, float]:
        """Return the middle of a pixel of the file, in pixels of the output.

        Raises:
            ValueError: the file has no such pixel, or the pipeline cropped it away.
        """
        if not (0 <= y < self.image_size[0] and 0 <= x < self.image_size[1]):
            height, width = self.image_size
            raise UserError(f'query {y} {x} is outside the {height}x{width} image')
        place = np.multiply((y + 0.5, x + 0.5), self.scale) + self.offset
        if (place < 0).any() or (place >= self.size).any():
            height, width = self.size
            raise UserError(
                f'query {y} {x} is not in the middle {height}x{width} pixels that the '
                f'pipeline crops the image to'
            )
        return tuple(place)


def picture_of(image: Tensor, size: Sequence[int]) -> np.ndarray:
    """Return BGR of shape (3, h, w) as RGB of shape (H, W, 3), padded with white.

    Images of other channels or of another type are stretched; see `mmattn.images`.
    """
    image = image.permute(1, 2, 0).numpy()
    if image.shape[2] != 3 or image.dtype not in (np.uint8, np.float32):
        image = shown(image)[:, :, ::-1]
    image = image[:, :, ::-1].clip(0, 255).astype(np.uint8)
    picture = np.full((*size, 3), 255, np.uint8)
    picture[: image.shape[0], : image.shape[1]] = image
    return picture
