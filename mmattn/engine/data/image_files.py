"""Detect truncated image files by their last bytes."""

from functools import lru_cache

from PIL import Image

# First bytes of a format, what its files end in, and its name.
FORMATS = (
    (b'\xff\xd8\xff', b'\xff\xd9', 'JPEG'),
    (b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82', 'PNG'),
)
HEAD, TAIL = 8, 64
PADDING = b'\x00\r\n '


def check_image_file(path: str) -> None:
    """Raise ValueError if a file is empty, or a JPEG or PNG that breaks off.

    OpenCV decodes most of the former's truncated files, gray where they end. A file
    that ends as its format demands, padding aside, costs one short read. Another, such
    as a JPEG with a camera's data behind the image, is decoded, once. Other formats are
    left to their decoders, as is a file that is not there.
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
        raise ValueError(f'{path} is an empty file')
    for start, end, name in FORMATS:
        if head.startswith(start) and not tail.rstrip(PADDING).endswith(end):
            error = _decoding_error(path, size)
            if error is not None:
                raise ValueError(f'{path} is a truncated {name} file: {error}')


@lru_cache(maxsize=2**16)
def _decoding_error(path: str, size: int) -> str | None:
    """Return Pillow's error for a file of this size; it is strict about missing data.
    """
    try:
        with Image.open(path) as image:
            image.load()
    except Image.DecompressionBombError:
        return None
    except (OSError, SyntaxError, ValueError) as error:
        return str(error)
    return None
