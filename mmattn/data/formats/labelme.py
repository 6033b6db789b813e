"""Read LabelMe's JSON files."""

import base64
import binascii
import io
import math
from collections import Counter
from pathlib import Path, PureWindowsPath

import numpy as np
from PIL import Image, UnidentifiedImageError
from pycocotools import mask as coco_mask
from tqdm import tqdm

from mmattn.errors import UserError

from ...results.coco import encode_mask
from ..coco_json import NUMBERS, encoded, is_text, read_json, shown
from ..image_files import annotation_files, image_files
from ..layouts import Part
from ..notes import say, some
from .content import Content, checked_size, ellipse, rectangle

IGNORE = '__ignore__'  # the label that LabelMe's own converters leave out
# `rotation` is X-AnyLabeling's rectangle that is turned.
POINTS = {'polygon': 3, 'rotation': 4, 'rectangle': 2, 'circle': 2, 'mask': 2}


def read_labelme(part: Part) -> Content:
    """Read LabelMe's JSON files: polygons, rectangles, circles and masks.

    Shapes of one label and one group are one object, and those of the label
    `__ignore__` are left out.
    """
    content, classes, others = Content(), set(), Counter()
    files = image_files(part.images, beside=part.annotations)
    used, renamed = {}, []
    texts = annotation_files(part.annotations, '.json').values()
    for file in tqdm(texts, 'read', disable=None):
        document = read_json(file)
        shapes = document.get('shapes') if isinstance(document, dict) else None
        if not isinstance(shapes, list):
            raise UserError(f'{file} is no file of LabelMe: it has no list "shapes"')
        given = document.get('imagePath')
        path = _image_of(given, file, part, files)
        if not is_text(given) or path.name != PureWindowsPath(given).name:
            renamed.append(str(file))
        if path in used:
            raise UserError(f'{file} and {used[path]} are of one image, {path.name}')
        used[path] = file
        declared = document.get('imageHeight'), document.get('imageWidth')
        size = checked_size(path, declared, str(file), part.channels)
        content.add_image(path.relative_to(part.images).as_posix(), size)
        groups = {}
        for number, shape in enumerate(shapes):
            place = f'{file}: shapes[{number}]'
            label, kind, outline = _labelme_shape(shape, size, place)
            if label == IGNORE or outline is None:
                others[label if label == IGNORE else kind] += 1
                continue
            classes.add(label)
            group = shape.get('group_id')
            key = (label, group) if type(group) in (int, str) else (label, place)
            if key not in groups:
                content.add(place, category_id=label)
                groups[key] = content.annotations[-1]
            _extend(groups[key], kind, outline, size)
    if renamed:
        what = 'files name no image and are taken for the image of their own name'
        say(some(len(renamed), renamed, what))
    if others:
        say(
            f'{others.total()} shapes of {part.annotations} are left out, as they '
            'are no objects or have no area: '
            + ', '.join(f'{count} of {kind}' for kind, count in others.items())
        )
    content.name_categories(classes)
    return content


def _image_of(given, file: Path, part: Part, files: dict[str, Path]) -> Path:
    """Return the image that a file names, wherever it lies, else that of its own name.

    People rename both files, and `imagePath` keeps the old name.
    """
    name = PureWindowsPath(given).name if is_text(given) else None
    found = [path for path in files.values() if path.name == name]
    if len(found) > 1:
        folder = file.relative_to(part.annotations).parent
        found = [path for path in found if path == part.images / folder / name]
    if not found:
        own = file.relative_to(part.annotations).with_suffix('').as_posix()
        found = [files[own]] if own in files else []
    if len(found) != 1:
        raise UserError(
            f'{file}: "imagePath" must be an image in {part.images}, got {shown(given)}'
        )
    return found[0]


def _labelme_shape(
    shape, size: tuple[int, int], place: str
) -> tuple[str, str, list | dict | None]:
    """Return label, type, and polygon or run lengths of a shape; None without area."""
    if not isinstance(shape, dict) or not is_text(shape.get('label')):
        raise UserError(f'{place} must be a shape with a "label", got {shown(shape)}')
    label, points = shape['label'], shape.get('points')
    kind = shape.get('shape_type') or 'polygon'
    if kind not in POINTS:
        return label, shown(kind), None
    pairs = points if isinstance(points, list) else [None]
    if not all(
        isinstance(p, list) and len(p) == 2 and NUMBERS.issuperset(map(type, p))
        for p in pairs
    ):
        raise UserError(
            f'{place}: "points" must be pairs of numbers, got {shown(points)}'
        )
    needed = POINTS[kind]
    if len(pairs) < needed or (kind in ('circle', 'mask') and len(pairs) > 2):
        raise UserError(f'{place}: a {kind} needs {needed} points, got {shown(points)}')
    if kind == 'mask':
        return label, kind, _mask(shape.get('mask'), pairs, size, place)
    if kind == 'circle':
        (x, y), edge = pairs
        radius = math.dist((x, y), edge) if max(map(abs, [x, y, *edge])) < 1e9 else 1e9
        return label, kind, ellipse(x, y, radius, radius)
    if kind == 'rectangle':
        xs, ys = zip(*pairs, strict=True)
        x1, y1, x2, y2 = min(xs), min(ys), max(xs), max(ys)
        pairs = [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
    return label, kind, [value for pair in pairs for value in pair]


def _mask(text, pairs: list, size: tuple[int, int], place: str) -> dict:
    """Return the run lengths of a mask, a PNG in base64 for the box of two points."""
    try:
        file = io.BytesIO(base64.b64decode(text, validate=True))
        mask = np.asarray(Image.open(file, formats=['PNG'])) > 0
    except (binascii.Error, TypeError, ValueError, UnidentifiedImageError) as error:
        raise UserError(
            f'{place}: "mask" must be a PNG file in base64, got {shown(text)}'
        ) from error
    (x1, y1), (x2, y2) = [[int(value) for value in pair] for pair in pairs]
    box = y2 - y1 + 1, x2 - x1 + 1
    inside = 0 <= x1 <= x2 < size[1] and 0 <= y1 <= y2 < size[0]
    if mask.shape != box or not inside:
        raise UserError(
            f'{place}: "mask" has the shape {mask.shape}, but its points '
            f'{shown(pairs)} are a box of {box} in an image of {size}'
        )
    return encode_mask(mask, (x1, y1), size)


def _extend(entry: dict, kind: str, outline: list[float] | dict, size: tuple[int, int]):
    """Add an outline to an object; an object of one rectangle is a box alone."""
    if kind == 'rectangle' and len(entry) == 2:
        x1, y1, _, _, x2, y2 = outline[:6]
        entry['bbox'] = [x1, y1, x2 - x1, y2 - y1]
        return
    if 'bbox' in entry:
        entry['segmentation'] = [rectangle(entry.pop('bbox'))]
    before = entry.setdefault('segmentation', [])
    if kind != 'mask' and isinstance(before, list):
        before.append(outline)
        return
    parts = [each for each in (before, outline) if isinstance(each, dict)]
    polygons = [*(before if isinstance(before, list) else ())]
    polygons += [outline] if kind != 'mask' else []
    parts += [encoded(polygons, size)] if polygons else []
    merged = coco_mask.merge(parts)
    entry['segmentation'] = merged | dict(counts=merged['counts'].decode())
