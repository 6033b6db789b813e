"""Turn results into what the page shows: a picture, a line, a table and a document."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmattn.errors import UserError, check_choice

from ..apis import Predictor
from ..apis.tiles import compact_masks, tile_boxes
from ..images import shown
from ..results import SCORE, Classification, Detections, Segmentation, coco_document
from .photos import Photo, enlarged, shrunk

Result = Detections | Segmentation | Classification
DRAWN = ('masks and boxes', 'masks', 'boxes')
MAX_ROWS = 300
TILES = (128, 192, 256, 384, 512, 768, 1024)  # sides to choose from
OVERLAP = 0.2  # share of a tile that it has in common with the next
MAX_TILES = 400  # of an image
TOP = 10
COLUMNS = {
    Detections: ['class', 'score', 'x', 'y', 'width', 'height', 'area'],
    Segmentation: ['class', 'share in %', 'pixels'],
    Classification: ['class', 'score'],
}


@dataclass(frozen=True)
class Prediction:
    """Hold what is kept of a result between the moves of a slider.

    Attributes:
        result: with masks that shrink to their boxes.
        classes: names of the model's classes, or None.
        seen: what the model sees, as text.
    """

    result: Result
    classes: list[str] | None
    seen: str


def predict(predictor: Predictor, photo: Photo, tile: int = 0) -> Prediction:
    """Return what a model finds in an image.

    Args:
        tile: side of the tiles that the image is cut into; 0 runs it whole.

    Raises:
        ValueError: there would be too many tiles.
    """
    part, seen = photo.pixels, 'The model sees {1} x {0} pixels.'
    if tile:
        boxes = tile_boxes(part.shape[:2], tile, OVERLAP)
        if len(boxes) > MAX_TILES:
            raise UserError(
                f'{len(boxes)} tiles of {tile} x {tile} pixels are too many, at most '
                f'{MAX_TILES}: choose larger ones'
            )
        part = part[:tile, :tile]
        seen = f'The model sees {{1}} x {{0}} pixels of each of {len(boxes)} tiles.'
    options = dict(tile=tile, overlap=OVERLAP) if tile else {}
    found = replace(predictor(photo.pixels, **options), source=photo.name)
    if isinstance(found, Detections) and isinstance(found.masks, np.ndarray):
        found.masks = compact_masks(found.masks) if len(found) else None
    seen = seen.format(*predictor.model.prepared_size(part))
    return Prediction(found, predictor.classes, seen)


@dataclass(frozen=True)
class Style:
    """Say what is drawn of a result.

    Attributes:
        score: lowest score of a detected object.
        drawn: one of `DRAWN`, for detections.
        names: whether to write names and scores of objects, if they are not too many.
        opacity: of a label map.

    Raises:
        ValueError: a value is out of range, as a program may send it.
    """

    score: float = SCORE
    drawn: str = DRAWN[0]
    names: bool = True
    opacity: float = 0.5

    def __post_init__(self):
        for name in ('score', 'opacity'):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise UserError(f'`{name}` must be from 0 to 1, got {value}')
        check_choice('`drawn`', self.drawn, DRAWN)


def draw(result: Result, photo: Photo, style: Style) -> np.ndarray:
    """Return the picture that the page shows.

    Small images are enlarged first, so that names do not hide the objects.
    """
    times = photo.enlarged
    picture = enlarged(shown(photo.pixels), times)
    if isinstance(result, Detections):
        found = result.above(style.score)
        parts = {}
        if found.masks is not None:
            parts = {f'with_{each}': each in style.drawn for each in ('masks', 'boxes')}
            if times > 1:
                masks = [enlarged(mask, times) for mask in found.masks]
                found.masks = compact_masks(np.stack(masks)) if masks else None
        found.boxes = found.boxes * times
        with_text = None if style.names else False
        return shrunk(
            found.draw(picture, score=style.score, with_text=with_text, **parts)
        )
    if isinstance(result, Segmentation):
        result = replace(result, labels=enlarged(result.labels, times))
        return shrunk(result.draw(picture, opacity=style.opacity))
    return shrunk(result.draw(picture))


def describe(result: Result, score: float) -> str:
    """Return a line about a result."""
    if isinstance(result, Detections):
        found = result.above(score)
        return f'{len(found)} objects with a score of at least {score:g}'
    if isinstance(result, Segmentation):
        return f'{len(result.present())} classes'
    (name, best), *_ = result.top(1)
    return f'{name} {best:.3f}'


def rows(result: Result, score: float) -> list[list]:
    """Return the rows of the table, at most 300."""
    if isinstance(result, Detections):
        found = result.above(score)[:MAX_ROWS]
        areas = _areas(found)
        return [
            [name, round(float(value), 3), *_corner_and_size(box), area]
            for name, value, box, area in zip(
                found.names, found.scores, found.boxes, areas, strict=True
            )
        ]
    if isinstance(result, Segmentation):
        shares = sorted(result.shares().items(), key=lambda each: -each[1])
        return [
            [name, round(100 * share, 2), round(share * result.labels.size)]
            for name, share in shares[:MAX_ROWS]
        ]
    return [[name, round(value, 4)] for name, value in result.top(TOP)]


def _corner_and_size(box: np.ndarray) -> list[float]:
    x1, y1, x2, y2 = box.tolist()
    return [round(value, 1) for value in (x1, y1, x2 - x1, y2 - y1)]


def _areas(found: Detections) -> list[int]:
    if found.masks is not None:
        return [int(area) for area in found.masks.area]
    return np.rint(np.prod(found.boxes[:, 2:] - found.boxes[:, :2], 1)).tolist()


def document(result: Result, score: float, classes: Sequence[str] | None) -> dict:
    """Return a result as a document of COCO, or the best classes of an image."""
    if isinstance(result, Classification):
        best = [dict(name=name, score=value) for name, value in result.top(TOP)]
        return dict(file_name=result.source, classes=best)
    if isinstance(result, Detections):
        result = result.above(score)
    return coco_document([result], classes)
