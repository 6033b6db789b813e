"""Read images from arrays, files, folders, patterns, addresses and videos."""

import glob
import io
import logging
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
from PIL import Image

from mmattn.errors import UserError, import_optional

from ..images import (
    NoImageError,
    WindowedImage,
    read_channels,
    read_image,
)
from ..weights.download import download

IMAGES = frozenset(
    ('.bmp', '.gif', '.jfif', '.jp2', '.jpeg', '.jpg', '.pgm', '.png', '.ppm')
    + ('.tif', '.tiff', '.webp')
)
VIDEOS = frozenset(
    ('.avi', '.m4v', '.mkv', '.mov', '.mp4', '.mpeg', '.mpg', '.webm', '.wmv')
)
MAX_DOWNLOAD = 2**28  # bytes
TIMEOUT = 30  # seconds
LOGGER = logging.getLogger('mmattn')
SKIP = 'Remove it, or skip such files by skip_broken=True (--skip-broken)'


class Listed(type(Path())):
    """A path from a folder or a pattern, rather than from a user."""


@dataclass
class Picture:
    """An image, and the place that it came from.

    Attributes:
        pixels: shape (H, W, 3), uint8 RGB, or as `read_channels` returns
            them; large files may be a `WindowedImage`.
        source: path or address, None for an array. Frames of a video have the path and
            their number: `video.mp4#0`.
    """

    pixels: np.ndarray | WindowedImage
    source: str | None = None


def expand(source: Any) -> tuple[list, bool]:
    """Return the arrays, PIL images, paths and addresses in a source.

    Args:
        source: an array, a PIL image, a path of an image, a video or a folder, a
            pattern such as 'images/**/*.jpg', an address, or a list of these.

    Returns:
        The list, which expands to itself, and whether the source is one image rather
        than several.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a folder or a pattern has no images, or the source is nothing of
            these.
    """
    if isinstance(source, (list, tuple)):
        return [item for each in source for item in expand(each)[0]], False
    if isinstance(source, (np.ndarray, Image.Image)):
        return [source], True
    if not isinstance(source, (str, Path)):
        raise UserError(
            'images must be arrays, PIL images, paths, patterns, addresses or lists of '
            f'these, got {type(source).__name__}'
        )
    if '://' in str(source):
        return [_checked_address(str(source))], True
    path = source if isinstance(source, Listed) else Path(source).expanduser()
    if path.is_dir():
        return _images_in(path), False
    if path.is_file():
        return [path], not is_video(path)
    if glob.has_magic(str(source)):
        return _images_like(str(path)), False
    raise FileNotFoundError(f'there is no image at {source}{_closest(path)}')


def is_video(item: Any) -> bool:
    return isinstance(item, Path) and item.suffix.lower() in VIDEOS


def _checked_address(address: str) -> str:
    scheme, path = address.partition('://')[0], Path(urlparse(address).path)
    if scheme not in ('http', 'https'):
        raise UserError(f'addresses must be of http or https, got {address}')
    if is_video(path):
        raise UserError(f'download the video first, got {address}')
    return address


def _images_in(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    images = [Listed(path) for path in files if path.suffix.lower() in IMAGES]
    if not images:
        below = [path for path in folder.rglob('*') if path.suffix.lower() in IMAGES]
        advice = ''
        if below:
            advice = f"; {len(below)} are in folders below: pass '{folder}/**/*'"
        elif any(map(is_video, files)):
            advice = '; pass its videos one by one'
        raise UserError(
            f'the folder {folder} has no images among its {len(files)} files '
            f'(known suffixes: {" ".join(sorted(IMAGES))}){advice}'
        )
    return images


def _images_like(pattern: str) -> list[Path]:
    paths = sorted(map(Listed, glob.glob(pattern, recursive=True)))
    kept = [path for path in paths if path.suffix.lower() in IMAGES | VIDEOS]
    if not kept:
        raise UserError(
            f'no image matches the pattern {pattern} ({len(paths)} other paths do)'
        )
    return kept


def _closest(path: Path) -> str:
    if not path.parent.is_dir():
        return f': the folder {path.parent} does not exist'
    names = [each.name for each in path.parent.iterdir()]
    close = get_close_matches(path.name, names, n=3)
    return f'; did you mean {", ".join(close)}?' if close else ''


def pictures(
    items: Iterable,
    skip_broken: bool = False,
    channels: int | None = None,
    **limits,
) -> Iterator[Picture]:
    """Read the items of `expand` one after another.

    Warn of files in a folder or of a pattern that have an image's name but are none.

    Args:
        items: see `expand`.
        skip_broken: whether to warn of any file that cannot be read, and go on.
        channels: of images that are read as they are, None for RGB in uint8.
        **limits: `max_megapixels` and `windows` of `read_image`.

    Raises:
        ValueError: an item cannot be read as an image.
        OSError: a file or an address cannot be opened.
    """
    for item in items:
        try:
            if is_video(item) and channels is not None:
                raise UserError(f'{item}: the model takes {channels} channels, not RGB')
            if is_video(item):
                yield from _frames(item)
            else:
                yield _read(item, channels, limits)
        except (OSError, ValueError) as error:
            # Folders also leave out files by their suffix.
            is_other = isinstance(item, Listed) and isinstance(error, NoImageError)
            if not (skip_broken or is_other):
                if isinstance(error, OSError):
                    raise
                raise UserError(f'{error}. {SKIP}') from error
            LOGGER.warning('skipped: %s', error)


def _read(item: Any, channels: int | None, limits: dict) -> Picture:
    source = str(item) if isinstance(item, (Path, str)) else None
    if isinstance(item, str):
        item = io.BytesIO(_download(item))
    if channels is None:
        return Picture(read_image(item, source, **limits), source)
    if isinstance(item, Image.Image):
        raise UserError(f'the model takes {channels} channels: pass a file or an array')
    return Picture(read_channels(item, channels, source, **limits), source)


def _download(address: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, 'image')
        options = dict(progress=False, attempts=2, wait=0.5, timeout=TIMEOUT)
        return download(address, file, limit=MAX_DOWNLOAD, **options).read_bytes()


def _open_video(path: Path):
    """Return OpenCV's reader of a video."""
    message = f'{path} requires OpenCV: pip install opencv-python-headless'
    cv2 = import_optional(message, 'cv2')
    video = cv2.VideoCapture(str(path))
    if not video.isOpened():
        raise UserError(f'OpenCV cannot read {path} as a video')
    return video


def _frames(path: Path) -> Iterator[Picture]:
    video = _open_video(path)
    try:
        number = 0
        while True:
            found, frame = video.read()
            if not found:
                break
            yield Picture(np.ascontiguousarray(frame[:, :, ::-1]), f'{path}#{number}')
            number += 1
    finally:
        video.release()
    if number == 0:
        raise UserError(f'{path} has no frames')


def video_facts(path: Path) -> tuple[int, float]:
    """Return the number of frames, as the file claims it, and the frames a second."""
    video = _open_video(path)
    try:
        # Values of cv2.CAP_PROP_FRAME_COUNT and cv2.CAP_PROP_FPS.
        return max(int(video.get(7)), 0), video.get(5)
    finally:
        video.release()


def count(items: Iterable) -> int:
    """Return how many images `pictures` will read, if videos tell the truth."""
    return sum(video_facts(item)[0] if is_video(item) else 1 for item in items)
