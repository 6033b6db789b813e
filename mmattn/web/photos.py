"""Read images of users, within limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from mmattn.errors import MissingPackageError, UserError

from ..apis.sources import IMAGES
from ..images import NoImageError, read_channels, read_image, shown, tiff_size

SHOWN_SIDE = 1600  # pixels of the longer side that the browser gets
EXAMPLES = 8  # test images to choose from, if the user gives no others
CLEAR_SIDE = 640  # pixels that the longer side of a small image is enlarged to


@dataclass(frozen=True)
class Photo:
    """An image that a user dropped or chose.

    Attributes:
        name: of the file, without folders.
        pixels: shape (H, W, 3), uint8 RGB; of a TIFF file with more than four channels
            all as they are.
    """

    name: str
    pixels: np.ndarray

    @property
    def enlarged(self) -> int:
        """Return how many times a small image is enlarged to be clear."""
        return max(1, CLEAR_SIDE // max(self.pixels.shape[:2]))

    @property
    def factor(self) -> float:
        """Return how many pixels of the image one pixel of `shown` stands for."""
        return max(1 / self.enlarged, max(self.pixels.shape[:2]) / SHOWN_SIDE)

    def shown(self) -> np.ndarray:
        """Return the image as the browser gets it."""
        return shrunk(enlarged(shown(self.pixels), self.enlarged))

    def pixel(self, x: float, y: float) -> tuple[int, int]:
        """Return the row and column of a pixel of `shown` in the image."""
        last = (side - 1 for side in self.pixels.shape[:2])
        return tuple(
            min(int((place + 0.5) * self.factor), end)
            for place, end in zip((y, x), last, strict=True)
        )


def enlarged(picture: np.ndarray, times: int) -> np.ndarray:
    """Return an array whose pixels are repeated on both sides."""
    return picture if times == 1 else picture.repeat(times, 0).repeat(times, 1)


def shrunk(picture: np.ndarray) -> np.ndarray:
    """Return a picture that is at most as large as the browser gets it."""
    height, width = picture.shape[:2]
    if max(height, width) <= SHOWN_SIDE:
        return picture
    factor = max(height, width) / SHOWN_SIDE
    size = tuple(max(1, round(side / factor)) for side in (width, height))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))


def read_photo(path: str | Path, max_megapixels: float) -> Photo:
    """Return an image file that a user sent.

    Args:
        path: of the file.
        max_megapixels: height times width, in millions. It is compared before any pixel
            is decoded.

    Raises:
        ValueError: the file is no image, broken or too large.
    """
    name = Path(path).name
    limit = dict(max_megapixels=max_megapixels)
    try:
        channels = tiff_size(path, name)[2]
    except (MissingPackageError, NoImageError):
        channels = 1
    if channels > 4:  # Pillow reads no such file, or its first channel alone
        return Photo(name, read_channels(path, channels, name, **limit))
    return Photo(name, np.ascontiguousarray(read_image(path, name, **limit)))


def images_in(folder: Path) -> dict[str, Path]:
    """Return the image files of a folder by name.

    Links that lead out of the folder are left out.

    Raises:
        ValueError: there are none.
    """
    root = folder.expanduser().resolve()
    if not root.is_dir():
        raise UserError(f'there is no folder {folder}')
    found = {
        path.name: path.resolve()
        for path in sorted(root.iterdir())
        if path.suffix.lower() in IMAGES and path.is_file()
    }
    found = {name: path for name, path in found.items() if path.is_relative_to(root)}
    if not found:
        raise UserError(f'{folder} has no images ({", ".join(sorted(IMAGES))})')
    return found


def example_images(dataset: Mapping) -> dict[str, Path]:
    """Return the first images of a data set's config by name, none if not here."""
    prefix = dataset.get('data_prefix') or ''
    if isinstance(prefix, Mapping):
        prefix = prefix.get('img') or prefix.get('img_path') or prefix.get('img_dir')
    folder = Path(dataset.get('data_root') or '', prefix or dataset.get('split') or '')
    files = folder.rglob('*') if 'data_root' in dataset and folder.is_dir() else ()
    images = (path for path in files if path.suffix.lower() in IMAGES)
    return {path.name: path.resolve() for path in sorted(islice(images, EXAMPLES))}
