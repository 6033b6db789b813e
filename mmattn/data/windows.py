"""Write images, or parts of them."""

import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from ..images import read_channels, read_image, tiff_size
from ..images.guard import TIFF_SUFFIXES, reading

Window = tuple[int, int, int, int]  # x1, y1, x2, y2


def write_image(path: Path, target: Path, window: Window | None = None) -> None:
    """Copy an image, or write a part of it with all of its channels and bits.

    A part is written without loss, as TIFF if `target` says so, else as PNG.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if window is None:
        shutil.copyfile(path, target)
        return
    x1, y1, x2, y2 = window
    pixels = _pixels(path.absolute(), path.stat().st_mtime_ns, target.suffix)
    part = pixels[y1:y2, x1:x2]
    if target.suffix == '.tif':
        import tifffile  # it has read the image

        tifffile.imwrite(target, np.ascontiguousarray(part))
    else:
        Image.fromarray(part).save(target)


def suffix_of_parts(path: Path) -> str:
    """Return the suffix of the parts of an image."""
    return '.tif' if path.suffix.lower() in TIFF_SUFFIXES else '.png'


@lru_cache(maxsize=1)  # parts of one image follow each other
def _pixels(path: Path, changed: int, suffix: str) -> np.ndarray:
    if suffix == '.png':
        return read_image(path)
    with reading(str(path)):
        channels = tiff_size(path, str(path))[2]
        pixels = read_channels(path, channels)
    return pixels[:, :, 0] if channels == 1 else pixels
