"""Read label maps, and write them as mmsegmentation reads them."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from tqdm import tqdm

from mmattn.errors import UserError

from ..images import read_image, read_labels
from .image_files import image_files, image_size, matching
from .layouts import Part
from .notes import say, some
from .windows import Window, write_image
from .yolo_yaml import read_lines

IGNORED = 255  # the label that losses and metrics of segmentation ignore
# Cityscapes has several maps of an image.
CITYSCAPES = '_labelTrainIds', '_labelIds'
MUCH = 0.01  # share of the pixels that is not the border of objects
NEAR, FEW = 64, 0.05  # how far a JPEG file's compression moves colors, but for a share
COLOR = np.array((1 << 16, 1 << 8, 1), np.int32)  # of red, green and blue
BLACK, WHITE = 0, 0xFFFFFF


@dataclass
class LabelMap:
    """An image and its label map.

    Attributes:
        path: file of the image.
        labels: file of the label map.
        size: height and width.
        name: path of the image that is written, in the folder of its split.
        window: the part that is written; None for the whole image.
    """

    path: Path
    labels: Path
    size: tuple[int, int]
    name: str
    window: Window | None = None


@dataclass(frozen=True)
class Legend:
    """Give the meaning of the values of label maps.

    Attributes:
        classes: names of the classes that are written.
        values: the class of each value, which is a number, or a color as red << 16 |
            green << 8 | blue.
        ignored: values that are no class.
        colors: whether values are colors.
    """

    classes: Sequence[str]
    values: dict[int, int]
    ignored: Sequence[int] = ()
    colors: bool = False


def from_label_maps(part: Part) -> list[LabelMap]:
    """Return the images of a part with their label maps."""
    files = image_files(part.images, beside=part.annotations, names=part.names)
    some_only = part.names is not None
    maps = matching(files, part.annotations, some_only=some_only, kinds=CITYSCAPES)
    return [
        LabelMap(
            path,
            maps[name],
            image_size(path, part.channels),
            path.relative_to(part.images).as_posix(),
        )
        for name, path in tqdm(files.items(), 'read', disable=None)
    ]


def name_alike(maps: Sequence[LabelMap]) -> None:
    """Give images of several suffixes one, in place, as mmseg reads images of one.

    JPEG files and TIFF files are spelled alike; of several kinds, all become PNG files.
    """
    if len({each.path.suffix for each in maps}) < 2:
        return
    kinds = {_kind(each) for each in maps}
    suffix = kinds.pop() if len(kinds) == 1 else '.png'
    others = [each.name for each in maps if _kind(each) != suffix]
    for each in maps:
        if _kind(each) != suffix:
            each.window = (0, 0, *each.size[::-1])
        each.name = PurePosixPath(each.name).with_suffix(suffix).as_posix()
    if others:
        say(f'{some(len(others), others, "images of other kinds")} are written as PNG')


def _kind(each: LabelMap) -> str:
    suffix = each.path.suffix.lower()
    return {'.jpeg': '.jpg', '.tiff': '.tif'}.get(suffix, suffix)


def read_legend(parts: Sequence[Part]) -> tuple[list[str], list[int] | None] | None:
    """Return the classes that a file beside label maps names, and their colors.

    Roboflow writes `_classes.csv`, CVAT `labelmap.txt`, LabelMe `class_names.txt`, and
    CamVid has `class_dict.csv`. Returns None without such a file.
    """
    folders = {p for part in parts for p in (part.images, part.annotations)}
    folders |= {folder.parent for folder in folders}
    for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
        for name, read in LEGENDS.items():
            file = folder / name
            if not file.is_file():
                continue
            try:
                return read(file)
            except (csv.Error, IndexError, ValueError) as error:
                raise UserError(
                    f'{file} must have a number or a color, and a name, of each class '
                    f'({error}); --classes and --palette replace it'
                ) from error
    return None


def _of_numbers(file: Path) -> tuple[list[str], None]:
    named = {int(row[0]): row[1] for row in _cells(file, ',')[1:]}
    if not named or min(named) < 0 or max(named) >= IGNORED:
        raise ValueError(f'numbers {sorted(named)}')
    return [named.get(number, f'{number}') for number in range(max(named) + 1)], None


def _of_colors(file: Path) -> tuple[list[str], list[int]]:
    rows = [(row[0], row[1:4]) for row in _cells(file, ',')[1:]]
    return [name for name, _ in rows], [_number(color) for _, color in rows]


def _of_lines(file: Path) -> tuple[list[str], None]:
    return [line.strip() for line in read_lines(file) if line.strip()], None


def _of_cvat(file: Path) -> tuple[list[str], list[int]]:
    rows = [row for row in _cells(file, ':') if not row[0].startswith('#')]
    return [row[0] for row in rows], [_number(row[1].split(',')) for row in rows]


LEGENDS = {
    '_classes.csv': _of_numbers,
    'class_dict.csv': _of_colors,
    'labelmap.txt': _of_cvat,
    'class_names.txt': _of_lines,
}


def _cells(file: Path, mark: str) -> list[list[str]]:
    with file.open(newline='', encoding='utf-8-sig') as opened:
        rows = csv.reader(opened, delimiter=mark)
        return [[cell.strip() for cell in row] for row in rows if row]


def _number(color: Sequence[str]) -> int:
    red, green, blue = map(int, color)
    return red << 16 | green << 8 | blue


def read_mask(
    path: Path, size: tuple[int, int], palette: Sequence[int] | None = None
) -> np.ndarray:
    """Return a mask of the size of its image: numbers, or colors as those of `palette`.

    The numbers of a JPEG file are 0 and 255: no others outlast its compression.

    Raises:
        ValueError: it is no image, has colors without `palette`, or another size.
    """
    with path.open('rb') as file:
        is_jpeg = file.read(2) == b'\xff\xd8'
    if is_jpeg:
        mask = _nearest(path, palette or (BLACK, WHITE))
        mask = mask if palette else (mask == WHITE) * np.uint8(255)
    elif palette:
        mask = read_image(path).astype(np.int32) @ COLOR
    else:
        mask = read_labels(path)
    if mask.shape != size:
        raise UserError(
            f'{path} has {mask.shape[0]} x {mask.shape[1]} pixels, but its image has '
            f'{size[0]} x {size[1]}'
        )
    return mask


def _nearest(path: Path, palette: Sequence[int]) -> np.ndarray:
    """Return the color of `palette` that each pixel had before its compression.

    Raises:
        ValueError: it had others, or numbers that are almost black.
    """
    pixels = read_image(path).astype(np.int16)
    found = np.full(pixels.shape[:2], palette[0], np.int32)
    least = np.full(pixels.shape[:2], 256, np.int16)
    for color in palette:
        channels = np.array([color >> 16, color >> 8 & 255, color & 255], np.int16)
        distance = np.abs(pixels - channels).max(-1)
        found[distance < least] = color
        np.minimum(least, distance, out=least)
    dark = tuple(palette) == (BLACK, WHITE) and 0 < pixels.max() < 128
    if dark or (least > NEAR).mean() > FEW:
        raise UserError(
            f'{path} is a JPEG file, whose compression changes numbers, and has other '
            f'colors than {" ".join(f"#{each:06x}" for each in palette)}: save masks '
            'as PNG files, or pass `mmattn data convert labels` the colors with '
            '--palette'
        )
    return found


def question_about_255(pixels: Sequence[int], classes: Sequence[str]) -> str | None:
    """Return what to ask where 255 covers much and may be the class without a pixel.

    It is not asked where several classes have pixels and several have none, as in a few
    images of many classes.

    Args:
        pixels: of each number from 0 to 255.
        classes: names of the classes.
    """
    absent = [name for name, count in zip(classes, pixels, strict=False) if not count]
    share = pixels[IGNORED] / max(sum(pixels), 1)
    several_of_both = min(len(absent), len(classes) - len(absent)) > 1
    if not absent or several_of_both or share <= MUCH:
        return None
    have = 'has' if len(absent) == 1 else 'have'
    return (
        f'255 covers {share:.1%} of the pixels and is ignored, while '
        f'{", ".join(absent)} {have} no pixel. Is 255 a class? If it is, pass `mmattn '
        "data convert labels` the gray of each class (--palette '#000000' '#ffffff'); "
        'if it is not, pass --ignore 255'
    )


def class_numbers(path: Path, size: tuple[int, int], legend: Legend) -> np.ndarray:
    """Return the label map of an image in uint8: classes from 0, and `IGNORED`.

    Args:
        path: file of the label map.
        size: height and width of its image.
        legend: what its values mean.

    Raises:
        ValueError: a number or a color is no class.
    """
    palette = [*legend.values, *legend.ignored] if legend.colors else None
    mask = read_mask(path, size, palette)
    ignored = [*legend.ignored, *([] if legend.colors else [IGNORED])]
    numbers = np.full(mask.shape, IGNORED, np.uint8)
    left = ~np.isin(mask, ignored)
    for value, number in legend.values.items():
        here = (mask == value) & left
        numbers[here] = number
        left &= ~here
    if left.any():
        raise UserError(f'{path} has {_unknown(int(mask[left][0]), legend)}')
    return numbers


def _unknown(value: int, legend: Legend) -> str:
    what, ignore = f'the number {value}', f'{value}'
    accepted = f'0 to {len(legend.values) - 1}'
    gray = f'{value:02x}' * 3
    hint = f"; if it is a class, pass the gray of each, --palette ... '#{gray}'"
    if legend.colors:
        hint = ''
        what, ignore = f'the color #{value:06x}', f"'#{value:06x}'"
        accepted = 'of the colors '
        accepted += ' '.join(f'#{each:06x}' for each in legend.values)
    return (
        f'{what}, but there are {len(legend.values)} classes, {accepted} '
        f'({", ".join(legend.classes)}); if it is no class, pass --ignore {ignore}'
        f'{hint if value <= IGNORED else ""}'
    )


def write_label_maps(
    splits: dict[str, list[LabelMap]], legend: Legend, folder: Path
) -> dict:
    """Write `images/SPLIT/` and `labels/SPLIT/` of images and their label maps.

    Args:
        splits: images of each split.
        legend: what the values of the maps mean.
        folder: to write into.

    Raises:
        ValueError: a label map has a value that is no class, or 255 may be one.
    """
    counts = {}
    total = np.zeros(IGNORED + 1, np.int64)

    @lru_cache(maxsize=1)  # parts of one image follow each other
    def numbers_of(path: Path, size: tuple[int, int]) -> np.ndarray:
        return class_numbers(path, size, legend)

    for split, found in splits.items():
        for kind in ('images', 'labels'):
            (folder / kind / split).mkdir(parents=True)
        pixels = np.zeros_like(total)
        for each in tqdm(found, f'write {split}', disable=None):
            x1, y1, x2, y2 = each.window or (0, 0, *each.size[::-1])
            numbers = numbers_of(each.labels, each.size)[y1:y2, x1:x2]
            pixels += np.bincount(numbers.ravel(), minlength=len(pixels))
            write_image(each.path, folder / 'images' / split / each.name, each.window)
            target = (folder / 'labels' / split / each.name).with_suffix('.png')
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(numbers).save(target)
        total += pixels
        pixels = pixels[: len(legend.classes)]
        shares = (pixels / max(pixels.sum(), 1)).tolist()
        named = zip(legend.classes, shares, strict=True)
        counts[split] = {
            'images': len(found),
            'shares': {name: round(share, 4) for name, share in named},
        }
    question = question_about_255(total, legend.classes)
    if question and IGNORED not in legend.ignored and not legend.colors:
        raise UserError(f'{found[0].labels.parent}: {question}')
    return counts
