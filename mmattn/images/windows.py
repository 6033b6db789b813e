"""Read windows of a file that is too large for the memory."""

from pathlib import Path

import numpy as np

from mmattn.errors import UserError, import_optional

from .guard import reading

# First bytes of a file, and pyvips's reader.
READERS = (
    (b'\xff\xd8\xff', 'jpegload'),
    (b'\x89PNG\r\n\x1a\n', 'pngload'),
    (b'II*\0', 'tiffload'),
    (b'MM\0*', 'tiffload'),
    (b'II+\0', 'tiffload'),
    (b'MM\0+', 'tiffload'),
)
COLORS = ('b-w', 'grey16', 'rgb', 'rgb16', 'srgb')


class WindowedImage:
    """An image file of which `image[y1:y2, x1:x2]` reads the window as an array.

    Pixels are the same as from `read_image` or `read_channels`. `np.asarray` reads all.
    PNG and JPEG files have no places to start from: pyvips decodes them once, into a
    temporary file.

    Args:
        path: of a TIFF, PNG or JPEG file.
        channels: how many there must be, as they are; None for RGB in uint8.
        name: of the file in errors.

    Attributes:
        shape: height, width and channels.
        dtype: of the windows.
        of_pixel: bytes of a pixel in the file.

    Raises:
        ValueError: the file is of another format, broken, or has other channels.
        ImportError: pyvips is not installed.
    """

    ndim = 3

    def __init__(self, path: str | Path, channels: int | None, name: str):
        pyvips = import_optional(
            f'{name} has many pixels, which pyvips reads: pip install '
            '"mmattn[predict]"',
            'pyvips',
        )
        self._name, self._channels = name, channels
        with reading(name), open(path, 'rb') as file:
            head = file.read(8)
            found = [reader for start, reader in READERS if head.startswith(start)]
            if not found:
                raise UserError(
                    f'{name} has many pixels; such files must be TIFF, PNG or JPEG'
                )
            self._image = getattr(pyvips.Image, found[0])(str(path)).autorot()
        bands, kind = self._image.bands, self._image.interpretation
        self._dtype = self._image.crop(0, 0, 1, 1).numpy().dtype
        if channels is None:
            if kind not in COLORS or self._dtype not in (np.uint8, np.uint16):
                raise UserError(
                    f'{name} has {bands} channels of {self._dtype} as {kind}; of many '
                    'pixels, images must be gray or RGB in 8 or 16 bits'
                )
        elif bands != channels:
            raise UserError(
                f'{name} has {bands} channels, and the model takes {channels}'
            )
        self.shape = self._image.height, self._image.width, channels or 3
        self.dtype = np.dtype(np.uint8) if channels is None else self._dtype
        self.of_pixel = bands * self._dtype.itemsize

    def __getitem__(self, window: tuple[slice, slice]) -> np.ndarray:
        rows, columns = (
            range(side)[part] for part, side in zip(window, self.shape, strict=False)
        )
        box = columns.start, rows.start, len(columns), len(rows)
        with reading(self._name):
            pixels = self._image.crop(*box).numpy().reshape(len(rows), len(columns), -1)
        if self._channels is not None:
            return pixels
        if self._dtype == np.uint16:
            pixels = (pixels >> 8).astype(np.uint8)
        if pixels.shape[2] < 3:
            return np.repeat(pixels[..., :1], 3, 2)
        return np.ascontiguousarray(pixels[..., :3])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self[:, :].astype(dtype or self.dtype, copy=False)
