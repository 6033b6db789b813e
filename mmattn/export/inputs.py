"""Prepare images for an exported graph, as the test pipeline of its config does."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from mmattn.errors import UserError

from ..images import read_channels, read_image, resize
from .metadata import Metadata, check_pixels


@dataclass
class Prepared:
    """An image as a graph takes it, but for the padding.

    Attributes:
        pixels: shape (C, h, w).
        original: height and width of the original image.
    """

    pixels: np.ndarray
    original: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        """Return the height and width."""
        return self.pixels.shape[1:]

    @property
    def scale(self) -> tuple[float, float]:
        """Return by how much the width and the height were multiplied."""
        (height, width), (H, W) = self.size, self.original
        return width / W, height / H


def prepare(image, metadata: Metadata) -> Prepared:
    """Read an image as `mmattn.images` does, and resize, crop and normalize it.

    If the graph has a fixed shape, an image that the pipeline makes larger is shrunk to
    fit. A pipeline that crops or that ignores the ratio is scaled to the shape.
    """
    raw = metadata.raw
    image = read_image(image) if raw is None else read_channels(image, raw)
    original = image.shape[:2]
    size, crop = target_size(original, metadata)
    # Resizing makes rows of the new width first.
    check_pixels(max(size[0], original[0]) * size[1], f'an image of size {size}')
    settings = metadata.resize or {}
    image = resize(
        image,
        size[::-1],
        settings.get('interpolation', 'bilinear'),
        settings.get('backend', 'cv2'),
    )
    if crop is not None:
        image = _crop_center(image, crop)
    if metadata.channel_order == 'bgr':
        image = image[:, :, ::-1]
    pixels = image.transpose(2, 0, 1)
    if metadata.input_dtype == 'uint8':
        return Prepared(pixels, original)
    pixels = pixels.astype(np.float32)
    if not metadata.normalized:
        pixels = (pixels - _channels(metadata.mean)) / _channels(metadata.std)
    return Prepared(pixels, original)


def batch_shape(images: Sequence[Prepared], metadata: Metadata) -> list[int]:
    """Return the height and width to which the images of a batch are padded."""
    if metadata.dynamic != 'size':
        return metadata.shape
    largest = np.max([image.size for image in images], axis=0).tolist()
    return padded(largest, metadata.pad['divisor'])


def stack(images: Sequence[Prepared], metadata: Metadata) -> np.ndarray:
    """Return a batch of images, shape (B, C, H, W), padded below and to the right."""
    shape = batch_shape(images, metadata)
    check_pixels(len(images) * prod(shape), 'a batch')
    least = metadata.least or (1, 1)
    if shape[0] < least[0] or shape[1] < least[1]:
        raise UserError(
            f'the exported file takes images from {tuple(least)} on, got '
            f'{tuple(shape)}; enlarge them, or export a file with a smaller `shape`'
        )
    value = np.full((metadata.channels, 1, 1), metadata.pad['value'], np.float32)
    if metadata.normalized:
        value = value * _channels(metadata.std) + _channels(metadata.mean)
    if metadata.input_dtype == 'uint8':
        value = np.rint(value).clip(0, 255)
    batch = np.empty((len(images), metadata.channels, *shape), metadata.input_dtype)
    batch[:] = value
    for canvas, image in zip(batch, images, strict=True):
        canvas[:, : image.size[0], : image.size[1]] = image.pixels
    return batch


def padded(size: Sequence[int], divisor: int) -> list[int]:
    """Return a height and width rounded up to multiples of a divisor."""
    return [-(-side // divisor) * divisor for side in size]


def _channels(values: Sequence[float]) -> np.ndarray:
    return np.array(values, np.float32)[:, None, None]


def target_size(
    size: tuple[int, int], metadata: Metadata
) -> tuple[tuple[int, int], tuple[int, int] | None]:
    """Return the sizes of the resized image and of the crop, as height and width."""
    crop, fixed = metadata.crop, metadata.dynamic != 'size'

    def fills(size: Sequence[int]) -> bool:
        """Return whether the model pads a size to the graph's input size."""
        return padded(size, metadata.pad['divisor']) == list(metadata.shape)

    grown = 1.0
    if fixed and crop and not fills(crop):
        grown = max(side / old for side, old in zip(metadata.shape, crop, strict=True))
        crop = metadata.shape
    settings = metadata.resize or {}
    new = _pipeline_size(size, settings, grown)
    if fixed and not settings.get('keep_ratio', True) and not fills(new):
        new = metadata.shape
    if fixed and not crop:
        pairs = zip(metadata.shape, size, strict=True)
        if new[0] > metadata.shape[0] or new[1] > metadata.shape[1]:
            new = _scaled(size, min(side / old for side, old in pairs))
    return (max(new[0], 1), max(new[1], 1)), crop and tuple(crop)


def _pipeline_size(
    size: tuple[int, int], settings: dict, grown: float
) -> tuple[int, int]:
    H, W = size
    if 'short_side' in settings:
        side = round(settings['short_side'] * grown)
        return (int(side * H / W), side) if W < H else (side, int(side * W / H))
    if 'factor' in settings:  # mmcv rounds it to a `scale`
        scale = _scaled(size, settings['factor'])
        return _scaled(size, min(max(scale) / max(size), min(scale) / min(size)))
    if 'scale' not in settings:
        return size
    if not settings['keep_ratio']:
        return tuple(settings['scale'][::-1])
    long, short = max(settings['scale']), min(settings['scale'])
    factor = min(long / max(H, W), short / min(H, W))
    if settings['backend'] == 'torch':
        return int(H * factor), int(W * factor)
    return _scaled(size, factor)


def _scaled(size: tuple[int, int], factor: float) -> tuple[int, int]:
    return int(size[0] * factor + 0.5), int(size[1] * factor + 0.5)


def _crop_center(image: np.ndarray, crop: tuple[int, int]) -> np.ndarray:
    height, width = image.shape[:2]
    top = max(0, round((height - crop[0]) / 2))
    left = max(0, round((width - crop[1]) / 2))
    return image[top : top + crop[0], left : left + crop[1]]
