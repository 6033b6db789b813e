"""Read images for training, prediction, conversion and the page alike."""

import io
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import BITSPERSAMPLE, PLANAR_CONFIGURATION

from mmattn.errors import UserError, import_optional

from .guard import FORMATS, MAX_MEGAPIXELS, NoImageError, check_size, reading, too_many
from .windows import WindowedImage

ORIENTATION = 0x0112  # of EXIF and of TIFF
KNOWN = (np.uint8, np.uint16, np.int16, np.float32)  # OpenCV resizes these


def read_image(
    image: str | Path | BinaryIO | Image.Image | np.ndarray,
    name: str | None = None,
    *,
    max_megapixels: float = MAX_MEGAPIXELS,
    windows: bool = False,
) -> np.ndarray | WindowedImage:
    """Return an image as an array of shape (H, W, 3), uint8 RGB.

    Files must be of `FORMATS`, whatever their suffix. They are turned as their EXIF
    orientation says. Gray is repeated in three channels, transparency is dropped, and
    of 16 bits the upper 8 are kept. TIFF files with colors of 16 bits require tifffile
    and imagecodecs, files of more than 89 megapixels require pyvips.

    Args:
        image: a path, an open file, a PIL image or an array.
        name: of the image in errors; it defaults to the path.
        max_megapixels: how many a file may have.
        windows: whether to return a file of more than 89 megapixels as a
            `WindowedImage`, which reads what it is indexed by.

    Raises:
        NoImageError: the file is of none of `FORMATS`.
        ValueError: it is broken, too large, or an array of another shape or type.
        ImportError: a package that it requires is not installed.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if isinstance(image, Image.Image):
        name = name or getattr(image, 'filename', '') or 'the image'
        with reading(name):
            return _from_pillow(image, name)
    if not isinstance(image, (str, Path, io.IOBase)):
        raise UserError(
            'an image must be a path, a PIL image or an array, '
            f'got {type(image).__name__}'
        )
    name = name or str(image)
    with reading(name), _file(image) as file:
        try:
            opened = _opened(file)
        except UnidentifiedImageError:
            if not _is_tiff(file):
                raise
            return _from_deep_tiff(file, name, max_megapixels)
        if opened is not None:
            check_size(name, opened.height, opened.width, max_megapixels)
            if _has_deep_planes(opened):
                return _from_deep_tiff(file, name, max_megapixels)
            return _from_pillow(opened, name)
        return _large(image, None, name, max_megapixels, windows)


def header_size(path: str | Path) -> tuple[int, int] | None:
    """Return height and width from the header of a file, as the image is shown.

    Returns None for a file that is missing, damaged, or that Pillow does not read.
    """
    try:
        with Image.open(path, formats=FORMATS) as opened:
            width, height = opened.size
            turned = opened.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    return (width, height) if turned else (height, width)


def _file(image: str | Path | BinaryIO) -> AbstractContextManager[BinaryIO]:
    """Return an open file.

    Pillow maps a file that it opens itself into memory, and then turns some TIFF files
    wrongly.
    """
    if not isinstance(image, (str, Path)):
        return nullcontext(image)
    return open(image, 'rb')


def _opened(file: BinaryIO) -> Image.Image | None:
    """Return an open image, or None for one of more than 89 megapixels."""
    with warnings.catch_warnings():
        warnings.simplefilter('error', Image.DecompressionBombWarning)
        try:
            opened = Image.open(file, formats=FORMATS)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            return None
    # Users may have raised Pillow's limit.
    return opened if opened.width * opened.height <= MAX_MEGAPIXELS * 1e6 else None


def _is_tiff(file: BinaryIO) -> bool:
    file.seek(0)
    return file.read(2) in (b'II', b'MM')


def _large(
    image, channels: int | None, name: str, max_megapixels: float, windows: bool
):
    if max_megapixels <= MAX_MEGAPIXELS:
        raise too_many(name, max_megapixels)
    if not isinstance(image, (str, Path)):
        raise UserError(f'{name} has many pixels: pass the path of a file')
    with open(image, 'rb') as file:
        if _is_tiff(file):
            _refuse_planes(file, name)
    found = WindowedImage(image, channels, name)
    check_size(name, *found.shape[:2], max_megapixels, found.of_pixel)
    return found if windows else np.asarray(found)


def _refuse_planes(file: BinaryIO, name: str):
    """Raise a ValueError for a TIFF file with a plane for each channel.

    libvips 8.18 reads their rows from other places of the file, and says nothing.
    """
    with _tiff(file, name) as tiff:
        page = tiff.pages[0]
        if page.planarconfig == 2 and page.samplesperpixel > 1:
            raise UserError(
                f'{name} has many pixels, and a plane for each of its '
                f'{page.samplesperpixel} channels; such files must have channels side '
                'by side: gdal_translate -co INTERLEAVE=PIXEL'
            )


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


def _from_pillow(image: Image.Image, name: str) -> np.ndarray:
    kind = image.format
    image.load()  # some formats have the orientation behind the pixels
    if image.getexif().get(ORIENTATION, 1) != 1:  # otherwise, this would copy
        image = ImageOps.exif_transpose(image)
    # PNG and PPM files have at most 16 bits.
    deep = image.mode == 'I' and kind in ('PNG', 'PPM')
    if deep or image.mode.startswith('I;16'):
        pixels = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(pixels[:, :, None], 3, 2)
    if image.mode in ('I', 'F'):
        raise UserError(f'{name} has 32 bits, mode {image.mode}; 8 and 16 are accepted')
    return np.asarray(image if image.mode == 'RGB' else image.convert('RGB'))


def _has_deep_planes(image: Image.Image) -> bool:
    """Return whether a TIFF file has planes of 16 bits, which Pillow reads wrongly."""
    if image.format != 'TIFF':
        return False
    planes = image.tag_v2.get(PLANAR_CONFIGURATION) == 2
    return planes and 16 in image.tag_v2.get(BITSPERSAMPLE, ())


def _from_deep_tiff(image, name: str, max_megapixels: float) -> np.ndarray:
    """Return a TIFF file with colors of 16 bits that Pillow does not read."""
    pixels = _turned(*_read_tiff(image, name, max_megapixels), (3, 4))
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, 2)
    if pixels.ndim != 3 or pixels.shape[2] not in (3, 4) or pixels.dtype != np.uint16:
        raise NoImageError(
            f'{name} cannot be read as an image: it has shape {pixels.shape} in '
            f'{pixels.dtype}, and RGB in 8 or 16 bits is accepted'
        )
    return (pixels[..., :3] >> 8).astype(np.uint8)


def read_labels(path: str | Path) -> np.ndarray:
    """Return the numbers of a label map or a mask, integers of shape (H, W).

    They are the indices of a palette, 0 and 1 of an image of 1 bit, and the gray values
    of other images. Gray may have been saved as color.

    Raises:
        NoImageError: the file is of none of `FORMATS`.
        ValueError: it is broken or too large, or has colors.
    """
    with reading(str(path)), _file(path) as file:
        opened = _opened(file)
        if opened is None:
            raise too_many(str(path), MAX_MEGAPIXELS)
        labels = np.asarray(opened)
    if labels.ndim == 3:
        colors = labels[..., : len(opened.mode.removesuffix('A'))]  # of LA, PA, RGBA
        if (colors == colors[..., :1]).all():
            labels = colors[..., 0]
    if labels.ndim != 2 or labels.dtype.kind not in 'bui':
        raise UserError(
            f'{path} is a color image; a mask has one channel whose numbers are '
            f'objects or classes, got mode {opened.mode}. Where colors are classes, '
            '`mmattn data convert labels` takes them with --palette'
        )
    return labels.astype(np.uint8) if labels.dtype == bool else labels


def read_channels(
    image: str | Path | BinaryIO | np.ndarray,
    channels: int,
    name: str | None = None,
    *,
    max_megapixels: float = MAX_MEGAPIXELS,
    windows: bool = False,
) -> np.ndarray | WindowedImage:
    """Return an image as it is, of shape (H, W, `channels`): nothing is converted.

    Planes one after another, as many TIFF files keep them, are moved last, and files
    are turned as their orientation says.

    Args:
        image: path of a TIFF file, an open one, or an array.
        channels: how many there must be.
        name: of the image in errors; it defaults to the path.
        max_megapixels: see `read_image`; beyond 8 bytes of a pixel, each 8 count as
            one.
        windows: see `read_image`.

    Raises:
        NoImageError: the file is no TIFF file.
        ValueError: it is broken, too large, or has other channels.
        ImportError: tifffile or imagecodecs is not installed.
    """
    name = name or ('the array' if isinstance(image, np.ndarray) else str(image))
    pixels, orientation = image, 1
    if not isinstance(image, np.ndarray):
        found = tiff_size(image, name)
        if found[0] * found[1] > MAX_MEGAPIXELS * 1e6:
            return _large(image, channels, name, max_megapixels, windows)
        pixels, orientation = _read_tiff(image, name, max_megapixels)
    pixels = _turned(pixels, orientation, (channels,))
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] != channels or not pixels.size:
        raise UserError(
            f'{name} has shape {pixels.shape}, and the model takes {channels} channels'
        )
    if pixels.dtype.kind not in 'uif':
        raise UserError(f'{name} must have numbers as pixels, got {pixels.dtype}')
    # uint32 and the like have more values than float32 keeps.
    known = pixels.dtype in KNOWN
    return np.ascontiguousarray(pixels if known else pixels.astype(np.float32))


def tiff_size(file: str | Path | BinaryIO, name: str) -> tuple[int, int, int]:
    """Return the height, the width and the channels of a TIFF file.

    Raises:
        NoImageError: the file is no TIFF file.
        ValueError: it is broken.
        ImportError: tifffile or imagecodecs is not installed.
    """
    with _tiff(file, name) as tiff:
        page = tiff.pages[0]
        size = page.imagelength, page.imagewidth, page.samplesperpixel
        return tuple(map(int, size))  # damaged files have several


@contextmanager
def _tiff(file: str | Path | BinaryIO, name: str) -> Iterator:
    """Open a TIFF file by tifffile."""
    # Without imagecodecs, tifffile reads no LZW, and inflates 600 kB to 600 MB.
    tifffile = import_optional(
        f'{name} requires tifffile and imagecodecs: pip install "mmattn[predict]"',
        'imagecodecs',
        'tifffile',
    )
    if isinstance(file, io.IOBase):
        file.seek(0)
    with reading(name):
        try:
            opened = tifffile.TiffFile(file)
        except tifffile.TiffFileError as error:
            raise NoImageError(
                f'{name} cannot be read as a TIFF image: {error}'
            ) from error
        with opened:
            yield opened


def _read_tiff(file, name: str, max_megapixels: float) -> tuple[np.ndarray, int]:
    """Return the pixels of a TIFF file as they are, and their orientation."""
    with _tiff(file, name) as tiff:
        page, series = tiff.pages[0], tiff.series[0]
        height, width = page.imagelength, page.imagewidth
        size = prod(series.shape) * series.dtype.itemsize
        of_pixel = -(-size // max(height * width, 1))
        check_size(name, height, width, max_megapixels, of_pixel)
        tag = page.tags.get('Orientation')
        return series.asarray(), tag.value if tag else 1


def _turned(
    pixels: np.ndarray, orientation: int, channels: tuple[int, ...]
) -> np.ndarray:
    """Move planes last, where their number says that they are first, and turn."""
    if pixels.ndim not in (2, 3):
        return pixels
    planes_first = pixels.shape[-1] not in channels and pixels.shape[0] in channels
    if pixels.ndim == 3 and planes_first:
        pixels = np.moveaxis(pixels, 0, 2)
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels
