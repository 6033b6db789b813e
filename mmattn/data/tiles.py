"""Cut pictures into tiles, with their objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath

import numpy as np
from pycocotools import mask as coco_mask

from mmattn.errors import UserError

from ..images import tile_boxes
from ..results.coco import encode_mask
from .coco_json import encoded
from .label_maps import IGNORED, LabelMap, Legend, class_numbers
from .own_data import Picture
from .windows import Window, suffix_of_parts


@dataclass(frozen=True)
class Tiling:
    """How pictures are cut.

    Attributes:
        tile: side of the tiles.
        overlap: share of a tile that it has in common with the next.
        visible: smallest share of an object that is an object of the tile. Smaller
            parts are crowds, which neither training nor evaluation counts.
        empty: share of the tiles without objects, or of a single class, that are kept
            for training.
    """

    tile: int
    overlap: float = 0.2
    visible: float = 0.3
    empty: float = 0.1

    def __post_init__(self):
        for name in ('visible', 'empty'):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                option = {'visible': '--min-visible', 'empty': '--empty-tiles'}[name]
                raise UserError(f'{option} must be a share from 0 to 1, got {value}')


def cut_maps(
    found: Sequence[LabelMap], tiling: Tiling, legend: Legend, seed: int | None = None
) -> list[LabelMap]:
    """Return the tiles of images with label maps; see `cut_pictures`.

    Tiles whose pixels are of one class, or ignored, are those that are drawn.
    """
    tiles, empty = [], []
    for each in found:
        windows = _windows(each, tiling)
        tiles += [replace(each, name=_name(each, w), window=w) for w in windows]
        if seed is not None and tiling.empty < 1:
            numbers = class_numbers(each.labels, each.size, legend)
            empty += [
                _has_one_class(numbers[y1:y2, x1:x2]) for x1, y1, x2, y2 in windows
            ]
    return _drawn(tiles, np.flatnonzero(empty).tolist(), tiling.empty, seed)


def _has_one_class(numbers: np.ndarray) -> bool:
    classes = numbers[numbers != IGNORED]
    return classes.size == 0 or bool((classes == classes[0]).all())


def cut_pictures(
    pictures: Sequence[Picture], tiling: Tiling, seed: int | None = None
) -> list[Picture]:
    """Return the tiles of pictures with objects.

    Args:
        pictures: to cut.
        tiling: how.
        seed: of the draw of the tiles without objects that are kept; None keeps all.

    Raises:
        ValueError: the side or the overlap of the tiles is out of range.
        ImportError: sahi is not installed.
    """
    tiles = []
    for picture in pictures:
        crop = _crops(picture)
        tiles += [
            _tile(picture, window, tiling.visible, crop)
            for window in _windows(picture, tiling)
        ]
    empty = [index for index, tile in enumerate(tiles) if _is_empty(tile)]
    return _drawn(tiles, empty, tiling.empty, seed)


def _drawn(tiles: list, empty: list[int], share: float, seed: int | None) -> list:
    """Return the tiles with a share of the empty ones, or with all without a seed."""
    if seed is None:
        return tiles
    count = round(share * len(empty))
    kept = np.random.default_rng(seed).permutation(empty)[:count].tolist()
    left_out = {*empty} - {*kept}
    return [tile for index, tile in enumerate(tiles) if index not in left_out]


def _windows(picture: Picture | LabelMap, tiling: Tiling) -> list[Window]:
    boxes = tile_boxes(picture.size, tiling.tile, tiling.overlap)
    return [tuple(map(int, box)) for box in boxes]


def _name(picture: Picture | LabelMap, window: Window) -> str:
    path = PurePosixPath(picture.name)
    end = suffix_of_parts(picture.path)
    return f'{path.with_name(path.stem)}_{window[0]}_{window[1]}{end}'


def _is_empty(tile: Picture) -> bool:
    return len(tile.crowds) == len(tile.labels)


def _tile(picture: Picture, window: Window, visible: float, crop: Callable) -> Picture:
    """Return a tile with the objects of which a part is in it."""
    x1, y1, x2, y2 = window
    size = y2 - y1, x2 - x1
    tile = Picture(picture.path, size, name=_name(picture, window), window=window)
    for index in _touching(picture.boxes, window):
        x, y, w, h = picture.boxes[index]
        left, top = max(x - x1, 0), max(y - y1, 0)
        box = [left, top, min(x + w, x2) - x1 - left, min(y + h, y2) - y1 - top]
        share = box[2] * box[3] / (w * h)
        if picture.masks:
            part, corner, share = _mask_part(*crop(index), window)
            if not part.any():
                continue
            outline = picture.masks[index]
            if share == 1 and isinstance(outline, list):
                outline = [_moved(polygon, x1, y1) for polygon in outline]
            else:
                outline = encode_mask(part, corner, size)
            if share < 1:
                box = coco_mask.toBbox(encode_mask(part, corner, size)).tolist()
            tile.masks.append(outline)
        elif min(box[2:]) < 1:
            continue
        if index in picture.crowds or share < visible:
            tile.crowds.add(len(tile.labels))
        tile.labels.append(picture.labels[index])
        tile.boxes.append(box)
    return tile


def _touching(boxes: list[list[float]], window: Window) -> list[int]:
    x, y, w, h = np.array(boxes, np.float64).reshape(-1, 4).T
    x1, y1, x2, y2 = window
    inside = (x < x2) & (x + w > x1) & (y < y2) & (y + h > y1)
    return np.flatnonzero(inside).tolist()


def _moved(polygon: list[float], x: int, y: int) -> list[float]:
    return [value - (y if place % 2 else x) for place, value in enumerate(polygon)]


def _crops(picture: Picture) -> Callable[[int], tuple[np.ndarray, int, int]]:
    """Return a function to the pixels of an object's mask, and their left and top."""

    @cache
    def crop(index: int) -> tuple[np.ndarray, int, int]:
        rle = encoded(picture.masks[index], picture.size)
        x, y, w, h = map(int, coco_mask.toBbox(rle))
        return coco_mask.decode(rle)[y : y + h, x : x + w].astype(bool), x, y

    return crop


def _mask_part(
    mask: np.ndarray, x: int, y: int, window: Window
) -> tuple[np.ndarray, tuple[int, int], float]:
    """Return the part of a mask in a window, its corner there, and its share."""
    x1, y1, x2, y2 = window
    rows = slice(max(y1 - y, 0), max(y2 - y, 0))
    columns = slice(max(x1 - x, 0), max(x2 - x, 0))
    part = mask[rows, columns]
    corner = max(x - x1, 0), max(y - y1, 0)
    return part, corner, float(part.sum() / max(mask.sum(), 1))
