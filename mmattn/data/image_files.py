"""Files of images and of their annotations, by the names that they share."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image, ImageSequence
from PIL.TiffImagePlugin import EXTRASAMPLES, SAMPLESPERPIXEL

from mmattn.errors import UserError

from ..images import read_channels, read_image
from ..images.guard import FORMATS, TIFF_SUFFIXES, NoImageError, reading
from .notes import say, some

IMAGE_SUFFIXES = ('.png', '.jpg', '.jpeg', '.tif', '.tiff', '.bmp', '.webp')
NUMBER = re.compile(r'(?<![A-Za-z])\d+|\d+(?![A-Za-z])')  # not the 8 of `Img8bit`
DARK, SAMPLE = 32, 8  # of 255; images that are looked at
MASK_SUFFIXES = (*IMAGE_SUFFIXES, '.gif')  # training reads no images of GIF files
MASK_ENDS = ('_mask', '_masks', '_label', '_labels', '_l', '_seg', '_gt')


def image_files(
    folder: Path,
    *,
    beside: Path | None = None,
    names: Iterable[str] | None = None,
    suffixes: Sequence[str] = IMAGE_SUFFIXES,
) -> dict[str, Path]:
    """Return the images in a folder and the folders inside it, in order.

    Args:
        folder: of the images.
        beside: folder of annotations, whose images are left out if it is inside.
        names: paths in the folder, without suffix, of the images to return.
        suffixes: that are accepted.

    Returns:
        Paths by themselves in the folder, without suffix.

    Raises:
        ValueError: there is no image, two have one name, or one of `names` is missing.
    """
    files = {}
    for path in images_in(folder, suffixes):
        if beside != folder and beside in path.parents:
            continue
        name = _name(folder, path)
        if name in files:
            raise UserError(
                f'{files[name]} and {path} have one name; rename one of them'
            )
        files[name] = path
    if names is None:
        return files
    names = list(names)
    if missing := set(names) - files.keys():
        raise UserError(
            f'{folder}: {some(len(missing), missing, "images are missing")}'
        )
    return {name: files[name] for name in names}


def images_in(folder: Path, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> list[Path]:
    """Return the images in a folder and the folders inside it, in order.

    Raises:
        ValueError: there is none.
    """
    files = [path for path in _inside(folder) if path.suffix.lower() in suffixes]
    if not files:
        raise UserError(
            f'{folder} has no image; accepted suffixes: {", ".join(suffixes)}'
        )
    return files


def annotation_files(folder: Path, suffix: str) -> dict[str, Path]:
    """Return the files of a suffix in a folder, by their names as `image_files`."""
    files = (path for path in _inside(folder) if path.suffix.lower() == suffix)
    return {_name(folder, path): path for path in files}


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder that are of the data, in order."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    return [path for path in folders if not is_hidden(Path(path.name))]


def _inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f'{folder} is no folder')
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    return [path for path in files if not is_hidden(path.relative_to(folder))]


def is_hidden(path: Path) -> bool:
    """Return whether a file or a folder is one of a system, not of the data."""
    return any(part.startswith('.') or part == '__MACOSX' for part in path.parts)


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).with_suffix('').as_posix()


def image_size(path: Path, channels: int | None = None) -> tuple[int, int]:
    """Return height and width, turned by the EXIF orientation.

    Args:
        path: file of the image.
        channels: of a TIFF file that is read as it is; None for an image in RGB.

    Raises:
        ValueError: the file is no image, or has other channels.
    """
    if channels is not None:
        return read_channels(path, channels).shape[:2]
    try:
        return read_image(path).shape[:2]
    except NoImageError as error:
        if path.suffix.lower() not in TIFF_SUFFIXES:
            raise
        raise UserError(
            f'{error}; --channels reads TIFF files of other channels'
        ) from error


def darkness(paths: Sequence[Path]) -> str | None:
    """Return a warning if some of the images are almost black, or None.

    `read_image` keeps the upper 8 of 16 bits, which are empty in images of 12 bits.
    Images that it does not read have other loaders.
    """
    paths = paths[:: max(1, -(-len(paths) // SAMPLE))]
    try:
        brightest = max((int(read_image(path).max()) for path in paths), default=255)
    except (UserError, ImportError):  # of other channels, or large
        return None
    if brightest >= DARK:
        return None
    return (
        f'images are almost black, such as {paths[0]}: no pixel of {len(paths)} of '
        f'them is brighter than {brightest} of 255, and of 16 bits the upper 8 are '
        'kept. Stretch their values, or read all bits of TIFF files with LoadChannels '
        '(docs/own_data.md)'
    )


def dropped(paths: Sequence[Path]) -> str | None:
    """Return a warning if the first TIFF file has pages or channels that are not read.

    Pages that are smaller are previews, and a channel may be transparency.
    """
    path = next((p for p in paths if p.suffix.lower() in TIFF_SUFFIXES), None)
    if path is None:
        return None
    try:
        with reading(str(path)), Image.open(path, formats=FORMATS) as image:
            tags = image.tag_v2 if image.format == 'TIFF' else {}
            channels, extra = tags.get(SAMPLESPERPIXEL), tags.get(EXTRASAMPLES, ())
            size, frames = image.size, ImageSequence.Iterator(image)
            pages = sum(page.size == size for page in frames)
    except UserError:  # of a kind that Pillow does not read
        return None
    if pages > 1:
        return (
            f'{path} has {pages} pages of one size, of which the first is read. Save '
            'pages that are images as files of their own; where pages are channels, '
            f'--channels {pages} reads all of them'
        )
    if 0 in extra:
        return (
            f'{path} has {channels} channels, of which the first 3 are read: '
            f'--channels {channels} reads all of them'
        )
    return None


def matching(
    images: dict[str, Path],
    folder: Path,
    *,
    some_only: bool = False,
    kinds: Sequence[str] = (),
) -> dict[str, Path]:
    """Return the masks of images by the names of the images.

    Names may differ in what all images and all masks have in common, such as `_L` at
    the end, or `img_` and `mask_` before a number.

    Args:
        images: files by name; those that are masks of others are removed, as masks may
            lie among their images.
        folder: of the masks.
        some_only: whether the folder may have masks of other images.
        kinds: ends of the masks to take where the folder has several of an image, the
            best first.

    Raises:
        ValueError: an image has no mask, or a mask no image.
    """
    masks = image_files(folder, suffixes=MASK_SUFFIXES)
    hint = 'the suffix and what all names share'
    if set(masks.values()) & set(images.values()):
        hint += (
            '; if masks have a folder of their own, pass it after that of the images'
        )
        for name in [name for name in images if name.lower().endswith(MASK_ENDS)]:
            del images[name]
        masks = {name: path for name, path in masks.items() if name not in images}
    for kind in kinds:
        if of_kind := [name for name in masks if name.endswith(kind)]:
            masks = {name: masks[name] for name in of_kind}
            break
    if images.keys() != masks.keys():
        masks = _renamed(masks, images)
    extra = set() if some_only else masks.keys() - images.keys()
    for kind, missing in (
        ('images without a mask', images.keys() - masks.keys()),
        ('masks without an image', extra),
    ):
        if missing:
            raise UserError(
                f'{folder}: {some(len(missing), missing, kind)}; an image and its mask '
                f'have the same name, apart from {hint}'
            )
    return {name: masks[name] for name in images}


def _renamed(masks: dict[str, Path], images: Iterable[str]) -> dict[str, Path]:
    """Return masks by the names of their images, where both differ in the same parts.

    Others keep their names, for the error that tells of them.
    """
    own, theirs = _different_parts(masks), _different_parts(images)
    renamed = {part for part in own.keys() & theirs if own[part] != theirs[part]}
    if not renamed:
        return masks
    part = min(renamed)
    if not part and not own[part].startswith(theirs[part]):
        return masks  # a single mask that has neither the number nor the name
    say(f'{masks[own[part]]} is the mask of {theirs[part]}, and so on')
    return {theirs.get(part, name): masks[name] for part, name in own.items()}


def _different_parts(names: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Return names by what is left without their common start and end.

    Numbers stay, also those that all names share. A single name is a start.
    """
    names = list(names)
    start = re.sub(r'\d+$', '', os.path.commonprefix(names))
    rests = [name.removeprefix(start)[::-1] for name in names]
    end = re.sub(r'\d+$', '', os.path.commonprefix(rests))
    kept = [NUMBER.findall(part) for part in (start, end[::-1])]
    parts = ([*kept[0], rest.removeprefix(end)[::-1], *kept[1]] for rest in rests)
    return {
        tuple(filter(None, part)): name for part, name in zip(parts, names, strict=True)
    }
