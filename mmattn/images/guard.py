"""Name the file in errors of decoders, and bound what is decoded."""

from collections.abc import Iterator
from contextlib import contextmanager

from PIL import UnidentifiedImageError

from mmattn.errors import UserError

TIFF_SUFFIXES = ('.tif', '.tiff')
# Pillow's other readers run other programs, such as Ghostscript, or read rare formats.
FORMATS = ('BMP', 'GIF', 'JPEG', 'JPEG2000', 'PNG', 'PPM', 'TIFF', 'WEBP')
MAX_MEGAPIXELS = 89.0  # Pillow warns of larger images
ADVICE = (
    'cut it into tiles, or raise the limit where there is `max_megapixels` '
    '(--max-megapixels)'
)


class NoImageError(UserError):
    """Raised for a file of none of the formats that are read."""


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn any error of a decoder into one that names the file.

    Decoders of damaged files raise errors of many types, such as `zlib.error`.
    """
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, UserError):
        raise
    except UnidentifiedImageError as error:
        raise NoImageError(
            f'{name} cannot be read as an image of {", ".join(FORMATS)}'
        ) from error
    except Exception as error:
        reason = ' '.join(str(error).split()) or type(error).__name__
        raise UserError(f'{name} cannot be read as an image: {reason}') from error


def check_size(
    name: str, height: int, width: int, max_megapixels: float, of_pixel: int = 1
):
    """Raise a ValueError for an image of more pixels than are accepted.

    Args:
        name: of the file.
        height: of the image.
        width: of the image.
        max_megapixels: accepted, in millions.
        of_pixel: bytes of a pixel. Beyond 8, each 8 bytes count as one.
    """
    count = height * width * max(1, of_pixel / 8) / 1e6
    if count > max_megapixels:
        many = f' of {of_pixel} bytes' if of_pixel > 8 else ''
        raise UserError(
            f'{name} has {width} x {height} pixels{many}, which count as {count:.3g} '
            f'million; at most {max_megapixels:g} million are accepted: {ADVICE}'
        )


def too_many(name: str, max_megapixels: float) -> UserError:
    """Return the error for a file whose number of pixels is not known."""
    return UserError(
        f'{name} has more than {max_megapixels:g} million pixels: {ADVICE}'
    )
