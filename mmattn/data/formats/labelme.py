"""Read LabelMe's JSON files."""

import math
from collections import Counter
from pathlib import Path, PureWindowsPath

from tqdm import tqdm

from mmattn.errors import UserError

from ..coco_json import NUMBERS, is_text, read_json, shown
from ..own_data import image_files
from .content import Content, checked_size, rectangle, say, some

CIRCLE = 32  # points of the polygon of a circle


def read_labelme(images: Path, folder: Path) -> Content:
    """Read LabelMe's JSON files: polygons, rectangles and circles.

    Shapes of one label and one group are one object. Images without a file are left
    out, since nobody may have looked at them.
    """
    content, classes, others = Content(), set(), Counter()
    files = image_files(images)
    by_name = {path.name: path for path in files.values()}
    used = {}
    for file in tqdm(sorted(folder.glob('*.json')), 'read'):
        document = read_json(file)
        shapes = document.get('shapes') if isinstance(document, dict) else None
        if not isinstance(shapes, list):
            raise UserError(f'{file} is no file of LabelMe: it has no list "shapes"')
        name = document.get('imagePath')
        name = PureWindowsPath(name).name if is_text(name) else None
        if name not in by_name:
            raise UserError(
                f'{file}: "imagePath" must be an image in {images}, got '
                f'{shown(document.get("imagePath"))}'
            )
        if name in used:
            raise UserError(f'{file} and {used[name]} are of one image, {name}')
        used[name] = file
        declared = document.get('imageHeight'), document.get('imageWidth')
        size = checked_size(by_name[name], declared, str(file))
        content.add_image(by_name[name], size)
        groups = {}
        for number, shape in enumerate(shapes):
            place = f'{file}: shapes[{number}]'
            label, kind, outline = _labelme_shape(shape, place)
            if outline is None:
                others[kind] += 1
                continue
            classes.add(label)
            group = shape.get('group_id')
            key = (label, group) if type(group) in (int, str) else (label, place)
            if key not in groups:
                content.add(place, category_id=label)
                groups[key] = content.annotations[-1]
            _extend(groups[key], kind, outline)
    if others:
        say(
            f'{others.total()} shapes of {folder} are left out, as they have no area: '
            + ', '.join(f'{count} of {kind}' for kind, count in others.items())
        )
    if unused := by_name.keys() - used.keys():
        say(f'{some(len(unused), unused, "images without a file")} are left out')
    content.name_categories(classes)
    return content


def _labelme_shape(shape, place: str) -> tuple[str, str, list | None]:
    """Return the label, the type, and the polygon of a shape; None without an area."""
    if not isinstance(shape, dict) or not is_text(shape.get('label')):
        raise UserError(f'{place} must be a shape with a "label", got {shown(shape)}')
    label, points = shape['label'], shape.get('points')
    kind = shape.get('shape_type') or 'polygon'
    if kind not in ('polygon', 'rectangle', 'circle'):
        return label, shown(kind), None
    pairs = points if isinstance(points, list) else [None]
    if not all(
        isinstance(p, list) and len(p) == 2 and NUMBERS.issuperset(map(type, p))
        for p in pairs
    ):
        raise UserError(
            f'{place}: "points" must be pairs of numbers, got {shown(points)}'
        )
    needed = 3 if kind == 'polygon' else 2
    if len(pairs) < needed or (kind == 'circle' and len(pairs) > 2):
        raise UserError(f'{place}: a {kind} needs {needed} points, got {shown(points)}')
    if kind == 'circle':
        (x, y), edge = pairs
        radius = math.dist((x, y), edge) if max(map(abs, [x, y, *edge])) < 1e9 else 1e9
        angles = [2 * math.pi * i / CIRCLE for i in range(CIRCLE)]
        pairs = [
            (x + radius * math.cos(angle), y + radius * math.sin(angle))
            for angle in angles
        ]
    if kind == 'rectangle':
        xs, ys = zip(*pairs, strict=True)
        x1, y1, x2, y2 = min(xs), min(ys), max(xs), max(ys)
        pairs = [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
    return label, kind, [value for pair in pairs for value in pair]


def _extend(entry: dict, kind: str, polygon: list[float]):
    """Add a polygon to an object; an object of one rectangle is a box alone."""
    if kind == 'rectangle' and len(entry) == 2:
        x1, y1, _, _, x2, y2 = polygon[:6]
        entry['bbox'] = [x1, y1, x2 - x1, y2 - y1]
        return
    if 'bbox' in entry:
        entry['segmentation'] = [rectangle(entry.pop('bbox'))]
    entry.setdefault('segmentation', []).append(polygon)
