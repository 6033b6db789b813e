"""Read the JSON files of the VGG Image Annotator (VIA)."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from mmattn.errors import UserError

from ..coco_json import NUMBERS, read_json, shown
from ..image_files import image_size
from ..layouts import Part
from ..notes import say
from .content import OBJECT, Content, ImageNames, ellipse

LINE = 'polyline'
FORM = 'export the annotations of VIA 1 or 2 as JSON'
USUAL = 'class', 'label', 'name', 'type', 'category'  # attributes of regions
SHAPES = {  # and the numbers that they have
    'polygon': (),
    'rect': ('x', 'y', 'width', 'height'),
    'circle': ('cx', 'cy', 'r'),
    'ellipse': ('cx', 'cy', 'rx', 'ry'),
}


def read_via(part: Part) -> Content:
    """Read the regions of VIA: polygons, rectangles, circles and ellipses.

    One attribute of the regions is their class, and a note names it where there are
    several. Without attributes, all objects are of one class. The ends of lines are
    joined, as many people draw outlines so. Points are left out.
    """
    file, content, names = part.annotations, Content(), ImageNames(part.images)
    entries = _entries(read_json(file), file)
    key = _class_attribute(entries, file)
    classes, kinds, used = set(), Counter(), set()
    for entry in tqdm(entries, 'read', disable=None):
        path = names.find(entry.get('filename'), f'{file}: "filename"')
        if path in used:
            raise UserError(f'{file} has two entries of {path}')
        used.add(path)
        content.add_image(names[path], image_size(path, part.channels))
        for number, region in enumerate(_regions(entry)):
            place = f'{file}: region {number} of {path.name}'
            shape = region.get('shape_attributes')
            kind = str(shape.get('name')) if isinstance(shape, dict) else None
            outline = _outline(kind, shape, place)
            kinds[kind] += 1
            if outline is None:
                continue
            label = _value(region, key) if key else OBJECT
            if not label:
                raise UserError(
                    f'{place} must have one {key!r}, got '
                    f'{shown(region.get("region_attributes"))}'
                )
            classes.add(label)
            content.add(place, category_id=label, **outline)
    if LINE in kinds:
        say(f'{kinds[LINE]} regions of {file} are lines, whose ends are joined')
    if left := kinds.keys() - {LINE, *SHAPES}:
        counts = (f'{kinds[kind]} of {shown(kind)}' for kind in sorted(left, key=str))
        say(f'regions of {file} without an area are left out: {", ".join(counts)}')
    content.name_categories(classes)
    return content


def _entries(document, file: Path) -> list[dict]:
    """Return the entries of images, of exported annotations or a saved project."""
    if isinstance(document, dict):
        document = document.get('_via_img_metadata', document)
    entries = [*document.values()] if isinstance(document, dict) else [document]
    for entry in entries:
        if not isinstance(entry, dict) or not all(
            isinstance(region, dict) for region in _regions(entry)
        ):
            raise UserError(f'{file}: {shown(entry)} has no "regions"; {FORM}')
    return entries


def _regions(entry: dict) -> list:
    """Return the regions of an image, which VIA 1 numbers by keys."""
    regions = entry.get('regions')
    if isinstance(regions, dict):
        return [*regions.values()]
    return regions if isinstance(regions, list) else [None]


def _value(region: dict, key: str) -> str:
    """Return an attribute of a region, empty if it has none or several."""
    attributes = region.get('region_attributes')
    value = attributes.get(key) if isinstance(attributes, dict) else None
    if isinstance(value, dict):  # of boxes that are ticked
        ticked = [name for name, is_ticked in value.items() if is_ticked]
        value = ticked[0] if len(ticked) == 1 else None
    return str(value).strip() if type(value) in (str, *NUMBERS) else ''


def _class_attribute(entries: list[dict], file: Path) -> str | None:
    """Return the attribute that most regions have, by its name among equals."""
    counts = Counter(_filled(entries))
    if not counts:
        return None

    def rank(key: str) -> tuple:
        name = key.lower()
        return -counts[key], USUAL.index(name) if name in USUAL else len(USUAL)

    first, *others = sorted(counts, key=rank)
    if others:
        say(
            f'{file}: the classes are the attribute {shown(first)} of the regions, '
            f'which also have {", ".join(map(shown, others))}'
        )
    return first


def _filled(entries: list[dict]) -> Iterator[str]:
    for entry in entries:
        for region in _regions(entry):
            attributes = region.get('region_attributes')
            if isinstance(attributes, dict):
                yield from (key for key in attributes if _value(region, key))


def _outline(kind, shape, place: str) -> dict | None:
    """Return the box or the polygon of a shape, None if it has no area."""
    if kind in ('polygon', LINE):
        xs, ys = (shape.get(f'all_points_{axis}') for axis in 'xy')
        if not (_are_numbers(xs) and _are_numbers(ys) and len(xs) == len(ys) > 2):
            raise UserError(
                f'{place}: a polygon needs as many x as y, 3 or more, got '
                f'{shown(xs)} and {shown(ys)}'
            )
        pairs = zip(xs, ys, strict=True)
        return dict(segmentation=[[value for pair in pairs for value in pair]])
    if kind not in SHAPES:
        return None
    values = [shape.get(key) for key in SHAPES[kind]]
    if not _are_numbers(values):
        raise UserError(
            f'{place}: {", ".join(SHAPES[kind])} must be numbers, got {shown(values)}'
        )
    if kind == 'rect':
        return dict(bbox=values)
    if kind == 'circle':
        values.append(values[-1])
    theta = shape.get('theta') or 0
    if not _are_numbers([theta]):
        raise UserError(f'{place}: theta must be a number, got {shown(theta)}')
    return dict(segmentation=[ellipse(*values, theta)])


def _are_numbers(values) -> bool:
    return isinstance(values, list) and NUMBERS.issuperset(map(type, values))
