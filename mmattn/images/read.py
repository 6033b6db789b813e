"""Read and resize images like mmcv, without mmcv."""

import io
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mmattn.errors import MissingPackageError, UserError

# Pillow's other readers run other programs, such as Ghostscript, or read rare formats.
FORMATS = ('BMP', 'GIF', 'JPEG', 'JPEG2000', 'PNG', 'PPM', 'TIFF', 'WEBP')
CV2 = ('nearest', 'bilinear', 'bicubic')
PILLOW = ('nearest', 'bilinear', 'bicubic', 'box', 'hamming', 'lanczos')
INTERPOLATIONS = dict(cv2=CV2, pillow=PILLOW, torch=('bilinear',))
# Errors of Pillow for broken files, and for huge images.
BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class NoImageError(UserError):
    """Raised for a file of none of the formats that are read."""


def read_image(
    image: str | Path | BinaryIO | Image.Image | np.ndarray, name: str | None = None
) -> np.ndarray:
    """Return an image as an array of shape (H, W, 3), uint8 RGB.

    Files must be of `FORMATS`, whatever their suffix. They are turned as their EXIF
    orientation says. Gray is repeated in three channels, transparency is dropped, and
    of 16 bits the upper 8 are kept, as in OpenCV.

    Args:
        image: a path, an open file, a PIL image or an array.
        name: of the image in errors; it defaults to the path.

    Raises:
        NoImageError: the file is of none of `FORMATS`.
        ValueError: it is broken, too large, or an array of another shape or type.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if isinstance(image, Image.Image):
        return _from_pillow(image)
    if not isinstance(image, (str, Path, io.IOBase)):
        raise UserError(
            'an image must be a path, a PIL image or an array, '
            f'got {type(image).__name__}'
        )
    try:
        with Image.open(image, formats=FORMATS) as opened:
            return _from_pillow(opened)
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except UnidentifiedImageError as error:
        raise NoImageError(
            f'{name or image} cannot be read as an image of {", ".join(FORMATS)}'
        ) from error
    except BROKEN as error:
        raise UserError(
            f'{name or image} cannot be read as an image: {error}'
        ) from error


def _from_array(array: np.ndarray) -> np.ndarray:
    shape = array.shape
    if array.ndim == 2:
        array = array[:, :, None]
    channels = array.shape[2] if array.ndim == 3 else 0
    if array.dtype != np.uint8 or channels not in (1, 3, 4) or not array.size:
        raise UserError(
            'an array must be uint8 of shape (H, W), (H, W, 3) in RGB or (H, W, 4) in '
            f'RGBA, got {array.dtype} of shape {shape}'
        )
    return np.repeat(array, 3, 2) if channels == 1 else array[:, :, :3]


def _from_pillow(image: Image.Image) -> np.ndarray:
    if image.mode.startswith('I;16'):
        pixels = np.asarray(image).astype(np.uint16) >> 8
        image = Image.fromarray(pixels.astype(np.uint8))
    elif image.mode in ('I', 'F'):
        raise UserError(f'images of 32 bits are not supported, got mode {image.mode}')
    image = ImageOps.exif_transpose(image)
    return np.asarray(image.convert('RGB'))


def read_channels(
    image: str | Path | BinaryIO | np.ndarray, channels: int, name: str | None = None
) -> np.ndarray:
    """Return an image as it is, of shape (H, W, `channels`): nothing is converted.

    Planes one after another, as many TIFF files keep them, are moved last.

    Args:
        image: path of a TIFF file, an open one, or an array.
        channels: how many there must be.
        name: of the image in errors; it defaults to the path.

    Raises:
        NoImageError: the file is no TIFF file.
        ValueError: it is broken, or has other channels.
        ImportError: tifffile is not installed.
    """
    name = name or ('the array' if isinstance(image, np.ndarray) else str(image))
    pixels = image if isinstance(image, np.ndarray) else _read_tiff(image, name)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim == 3 and pixels.shape[2] != channels == pixels.shape[0]:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim != 3 or pixels.shape[2] != channels or not pixels.size:
        raise UserError(
            f'{name} has shape {pixels.shape}, and the model takes {channels} channels'
        )
    if pixels.dtype.kind not in 'uif':
        raise UserError(f'{name} must have numbers as pixels, got {pixels.dtype}')
    # OpenCV resizes these; uint32 and the like have more values than float32 keeps.
    known = pixels.dtype in (np.uint8, np.uint16, np.int16, np.float32)
    return np.ascontiguousarray(pixels if known else pixels.astype(np.float32))


def _read_tiff(file: str | Path | BinaryIO, name: str) -> np.ndarray:
    try:
        import tifffile
    except ImportError as error:
        raise MissingPackageError(
            'images of many channels require tifffile: pip install tifffile'
        ) from error
    try:
        return tifffile.imread(file)
    except tifffile.TiffFileError as error:
        raise NoImageError(f'{name} cannot be read as a TIFF image: {error}') from error
    except (IndexError, TypeError, ValueError) as error:  # of damaged files
        raise UserError(f'{name} cannot be read as an image: {error}') from error


def shown(image: np.ndarray) -> np.ndarray:
    """Return an image of any channels as RGB uint8, to look at.

    Of RGB in uint8 nothing changes. Otherwise the first three channels are red, green
    and blue, each stretched between its 0.5th and 99.5th percentile; an image of one or
    two is gray.
    """
    if image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return image
    image = image.reshape(*image.shape[:2], -1)
    image = image[:, :, [0, 1, 2] if image.shape[2] > 2 else [0, 0, 0]]
    low, high = np.nanpercentile(image, (0.5, 99.5), axis=(0, 1))
    scaled = (image - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    return np.rint(255 * np.nan_to_num(scaled).clip(0, 1)).astype(np.uint8)


def check_interpolation(interpolation: str, backend: str):
    """Raise a ValueError for an interpolation that `resize` does not have."""
    if interpolation not in INTERPOLATIONS.get(backend, ()):
        raise UserError(
            f'interpolations must be of {INTERPOLATIONS}, got {interpolation!r} of '
            f'{backend!r}'
        )


def resize(
    image: np.ndarray,
    size: tuple[int, int],
    interpolation: str = 'bilinear',
    backend: str = 'cv2',
) -> np.ndarray:
    """Return an image of another size, as `mmcv.imresize` does.

    Args:
        image: shape (H, W, 3), uint8.
        size: new width and height.
        interpolation: its name in mmcv.
        backend: 'cv2', which does not smooth, or 'pillow', which does. 'torch' returns
            float32, as `torch.nn.functional.interpolate` does.
    """
    check_interpolation(interpolation, backend)
    if backend == 'pillow':
        method = Image.Resampling[interpolation.upper()]
        return np.asarray(Image.fromarray(image).resize(size, method))
    try:
        import cv2
    except ImportError as error:
        raise MissingPackageError(
            'images are resized by OpenCV: pip install opencv-python-headless'
        ) from error
    if backend == 'torch':
        image = image.astype(np.float32)
    methods = cv2.INTER_NEAREST, cv2.INTER_LINEAR, cv2.INTER_CUBIC
    method = dict(zip(CV2, methods, strict=True))[interpolation]
    return cv2.resize(image, size, interpolation=method)


def nearest(old: int, new: int) -> np.ndarray:
    """Return the index of the old pixel that each new one copies."""
    return np.minimum((np.arange(new) * (1 / (new / old))).astype(int), old - 1)
