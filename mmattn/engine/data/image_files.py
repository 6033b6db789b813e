"""Detect truncated image files by their last bytes."""

from functools import lru_cache

from PIL import Image

from mmattn.errors import UserError

# First bytes of a format, last bytes of its files, and its name.
FORMATS = (
    (b'\xff\xd8\xff', b'\xff\xd9', 'JPEG'),
    (b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82', 'PNG'),
)
HEAD, TAIL = 8, 64
PADDING = b'\x00\r\n '


def check_image_file(path: str) -> None:
    """Raise ValueError if a file is empty, or a truncated JPEG or PNG.

    OpenCV decodes most truncated JPEG files and fills the rest with gray. A file whose
    last bytes fit its format, apart from padding, costs one short read. Any other file,
    such as a JPEG with a camera's data behind the image, is decoded once. Missing files
    and other formats are left to their decoders.
    """
    try:
        with open(path, 'rb') as file:
            head = file.read(HEAD)
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            tail = file.read()
    except FileNotFoundError:
        return
    if not head:
        raise UserError(f'{path} is an empty file')
    for start, end, name in FORMATS:
        if head.startswith(start) and not tail.rstrip(PADDING).endswith(end):
            error = _decoding_error(path, size)
            if error is not None:
                raise UserError(f'{path} is a truncated {name} file: {error}')


@lru_cache(maxsize=2**16)
def _decoding_error(path: str, size: int) -> str | None:
    """Return Pillow's error for a file of this size, or None.

    Pillow is strict about missing data.
    """
    try:
        with Image.open(path, formats=[name for _, _, name in FORMATS]) as image:
            image.load()
    except Image.DecompressionBombError:
        return None
    except (OSError, SyntaxError, ValueError) as error:
        return str(error)
    return None
