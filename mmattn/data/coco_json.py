"""Read the annotations of a COCO json: checked, completed, and alike for all readers.

What cannot be meant is an error that names the file and the annotation. What may be
meant is a note. Training, `mmattn data` and the metrics take their annotations here.
"""

import contextlib
import io
import json
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import dist, isfinite
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask

from mmattn.errors import UserError

SIDE = 10**6  # pixels; the largest side of an image
SLACK = 1  # pixels by which a box may reach beyond its image without a note
NUMBERS = {int, float}
OTHERS = 'caption', 'segments_info'  # annotations of these are no objects

_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxlist, _repr.maxstring = 2, 6, 80


def shown(value) -> str:
    """Return the repr of a value from a file, shortened: it may be huge."""
    try:
        return _repr.repr(value)
    except ValueError:  # a number of thousands of digits, of which Python prints none
        return f'a huge {type(value).__name__}'


@dataclass
class CocoJson:
    """The checked annotations of a COCO json.

    Attributes:
        content: `images`, `annotations`, `categories`, and what else the file has.
            Annotations have an `id` from 1 on, `bbox`, `area` and `iscrowd`;
            `segmentation` is absent, a list of polygons, or run lengths.
        notes: sentences about what is unusual and may be meant.
    """

    content: dict
    notes: list[str]


class _Fault(Exception):
    """Raised for an annotation that cannot be meant, with what is wrong with it."""


def read_json(source: str | Path | bytes, name: str | None = None):
    """Return the value of a JSON file, which may begin with a byte order mark.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON.
    """
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{name or source} is no JSON file: {error}') from error


def read_coco(
    source: str | Path | bytes, name: str | None = None, *, masks: bool = False
) -> CocoJson:
    """Read a COCO json from a file or its bytes, and check it.

    Args:
        source: path, or the bytes of the file.
        name: name of the file in errors; by default its path.
        masks: whether each object must have an outline.

    Raises:
        OSError: the file cannot be read.
        ValueError: an image, a category or an annotation cannot be meant.
    """
    name = name or str(source)
    content = read_json(source, name)
    return CocoJson(content, check_coco(content, name, masks=masks))


def index(content: dict, api):
    """Return an API of pycocotools or faster-coco-eval with an index of `content`.

    Args:
        content: the content of a `CocoJson`.
        api: an API without a file.
    """
    api.dataset = content
    with contextlib.redirect_stdout(io.StringIO()):
        api.createIndex()
    if hasattr(api, 'cat_img_map'):  # mmdet's names of the two maps
        api.img_ann_map, api.cat_img_map = api.imgToAnns, api.catToImgs
    return api


def numbered(content: dict) -> tuple[dict, dict]:
    """Return a copy of annotations with numbers from 1 as ids, for an evaluation.

    COCOeval reads ids as whole numbers, takes the annotation 0 for none, and sorts the
    classes by their ids. Here they are sorted already.

    Args:
        content: the content of a `CocoJson`.

    Returns:
        The content, and the new ids of images by the old ones.
    """
    ids = {
        key: {entry['id']: number for number, entry in enumerate(content[key], 1)}
        for key in ('images', 'categories')
    }
    copies = {
        key: [entry | dict(id=ids[key][entry['id']]) for entry in content[key]]
        for key in ids
    }
    copies['annotations'] = [
        entry
        | dict(
            id=number,
            image_id=ids['images'][entry['image_id']],
            category_id=ids['categories'][entry['category_id']],
        )
        for number, entry in enumerate(content['annotations'], 1)
    ]
    return content | copies, ids['images']


def check_coco(
    content,
    name: str,
    *,
    masks: bool = False,
    where: Callable[[int, dict], str] | None = None,
) -> list[str]:
    """Check the content of a COCO json, and complete it in place.

    Boxes and areas that are missing are computed, and annotations are numbered anew.
    Some tools number them from 0, by text or for each image, which pycocotools takes
    for other objects or for none.

    Args:
        content: the value of a JSON file.
        name: name of the file.
        masks: whether each object must have an outline.
        where: names an annotation in errors, by its index and itself; by default
            `NAME: annotation 17 (image 3)`.

    Returns:
        Sentences about what is unusual and may be meant.

    Raises:
        ValueError: something cannot be meant; the message names the first annotation.
    """
    if not isinstance(content, dict):
        raise UserError(
            f'{name} must be an object with "images", "annotations" and "categories", '
            f'got {shown(content)}'
        )
    notes = []
    sizes = _check_images(_entries(content, 'images', name), name, notes)
    annotations = _entries(content, 'annotations', name)
    content['annotations'] = annotations
    if annotations and any(key in annotations[0] for key in OTHERS):
        return notes
    categories = _entries(content, 'categories', name, needed=bool(annotations))
    content['categories'] = categories
    ids = _check_categories(categories, name)

    def default(index: int, entry: dict) -> str:
        label = f'annotations[{index}]'
        if 'id' in entry:
            label = f'annotation {shown(entry["id"])}'
        if 'image_id' in entry:
            label += f' (image {shown(entry["image_id"])})'
        return f'{name}: {label}'

    where = where or default
    labels = _Labels(annotations, where)
    unusual = {}
    for position, entry in enumerate(annotations):
        try:
            for note in _check_object(entry, sizes, ids, masks):
                unusual.setdefault(note, {})[position] = None
        except _Fault as fault:
            labels.fault(position, str(fault))
    labels.raise_faults()
    image_sizes = [sizes[entry['image_id']] for entry in annotations]
    unusual |= _check_boxes(annotations, np.array(image_sizes), labels)
    notes += [
        f'{labels[min(positions)]}: {note}{_more(len(positions) - 1)}'
        for note, positions in unusual.items()
    ]
    for number, entry in enumerate(annotations, 1):
        entry['id'] = number
    return notes


class _Labels:
    """Name annotations, and collect what is wrong with them."""

    def __init__(self, annotations: list[dict], where: Callable[[int, dict], str]):
        self.annotations, self.where = annotations, where
        self.first, self.count = None, 0

    def __getitem__(self, position: int) -> str:
        return self.where(position, self.annotations[position])

    def fault(self, position: int, text: str, count: int = 1):
        if self.first is None:
            self.first = f'{self[position]}: {text}'
        self.count += count

    def raise_faults(self):
        if self.first is not None:
            raise UserError(f'{self.first}{_more(self.count - 1)}')


def _more(count: int) -> str:
    return f' (and {count} more annotations)' if count else ''


def _entries(content: dict, key: str, name: str, needed: bool = True) -> list[dict]:
    """Return a list of objects of the file; `annotations` may be absent."""
    entries = content.get(key)
    if entries is None and (key == 'annotations' or not needed):
        return []
    if not isinstance(entries, list):
        got = shown(entries) if key in content else f'the keys {shown(list(content))}'
        raise UserError(f'{name}: "{key}" must be a list, got {got}')
    for position, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise UserError(
                f'{name}: {key}[{position}] must be an object, got {shown(entry)}'
            )
    return entries


def is_text(value) -> bool:
    """Return whether a value is text that can be printed and name a file."""
    if not isinstance(value, str) or not value or '\0' in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a letter
        return False
    return True


def _check_id(entry: dict, key: str, place: str):
    """Return the id of an image or a category.

    Raises:
        ValueError: there is none, or it is neither a whole number nor text.
    """
    value = entry.get(key)
    if type(value) not in (int, str):
        got = shown(value) if key in entry else f'the keys {shown(list(entry))}'
        raise UserError(f'{place}: "{key}" must be a whole number or text, got {got}')
    return value


def _check_images(
    images: list[dict], name: str, notes: list[str]
) -> dict[int | str, tuple[int, int]]:
    """Return the height and width of images by their ids."""
    sizes, files = {}, {}
    for position, image in enumerate(images):
        key = _check_id(image, 'id', f'{name}: images[{position}]')
        place = f'{name}: image {shown(key)}'
        file = image.get('file_name')
        if not is_text(file):
            raise UserError(f'{place}: "file_name" must be text, got {shown(file)}')
        for side in ('height', 'width'):
            value = image.get(side)
            if type(value) not in NUMBERS or value not in range(1, SIDE + 1):
                raise UserError(
                    f'{place} ({shown(file)}): "{side}" must be a whole number of '
                    f'pixels, 1 to {SIDE}, got {shown(value)}'
                )
        if key in sizes:
            raise UserError(
                f'{place} is listed twice, the second time as {shown(file)}'
            )
        sizes[key] = int(image['height']), int(image['width'])
        files.setdefault(file, []).append(key)
    repeated = [(file, keys) for file, keys in files.items() if len(keys) > 1]
    if repeated:
        file, keys = repeated[0]
        more = f', as are {len(repeated) - 1} more files' if repeated[1:] else ''
        notes.append(
            f'{name}: {shown(file)} is listed under several ids, {shown(keys)}{more}, '
            'each with objects of its own'
        )
    return sizes


def _check_categories(categories: list[dict], name: str) -> set:
    ids = set()
    for position, category in enumerate(categories):
        key = _check_id(category, 'id', f'{name}: categories[{position}]')
        if not is_text(category.get('name')):
            raise UserError(
                f'{name}: category {shown(key)}: "name" must be text, got '
                f'{shown(category.get("name"))}'
            )
        if key in ids:
            raise UserError(
                f'{name}: category {shown(key)} is listed twice, then as '
                f'{shown(category["name"])}'
            )
        ids.add(key)
    return ids


def _check_object(
    entry: dict, sizes: dict, categories: set, masks: bool
) -> Iterator[str]:
    """Check an annotation apart from where its box lies, and complete it.

    Yields:
        What is unusual about it.

    Raises:
        _Fault: it cannot be meant.
    """
    for key, known, listed in (
        ('image_id', sizes, 'images'),
        ('category_id', categories, 'categories'),
    ):
        value = entry.get(key)
        if key not in entry:
            raise _Fault(f'has no {key}, got the keys {shown(list(entry))}')
        if type(value) not in (int, str) or value not in known:
            raise _Fault(
                f'has the {key} {shown(value)}, which "{listed}" does not list'
            )
    size = sizes[entry['image_id']]
    if entry.setdefault('iscrowd', 0) not in (0, 1):
        raise _Fault(f'"iscrowd" must be 0 or 1, got {shown(entry["iscrowd"])}')
    if 'segmentation' in entry:
        yield from _check_outline(entry, size)
    has_outline = 'segmentation' in entry
    if masks and not has_outline and not entry.get('ignore'):
        raise _Fault('has no outline in "segmentation", which a model with masks needs')
    box = entry.get('bbox')
    if box is None or box == []:
        if not has_outline:
            raise _Fault('has neither "bbox" nor "segmentation"')
        entry['bbox'] = outline_box(entry['segmentation'])
    elif not isinstance(box, list) or len(box) != 4 or not _span(box):
        raise _Fault(f'"bbox" must be four numbers of pixels, got {shown(box)}')
    area = entry.get('area')
    if area is not None and not _span([area]):
        raise _Fault(f'"area" must be a number of pixels, got {shown(area)}')
    if area is None or area <= 0:
        if area is not None:
            yield f'has the area {area}; it is computed instead'
        entry['area'] = object_area(entry, size)


def _span(values: list) -> tuple[float, float] | None:
    """Return the least and the largest number, None unless all are finite numbers.

    Numbers that are larger than images are none either.
    """
    if not values or not NUMBERS.issuperset(map(type, values)):
        return None
    low, high = min(values), max(values)
    if -SIDE <= low <= high <= 2 * SIDE and isfinite(sum(values)):
        return low, high
    return None


def _check_outline(entry: dict, size: tuple[int, int]) -> Iterator[str]:
    outline = entry['segmentation']
    if isinstance(outline, dict) and outline:
        if not _check_rle(outline, size) and not entry['iscrowd']:
            yield 'has a mask without a pixel'
        return
    if isinstance(outline, list) and NUMBERS.issuperset(map(type, outline)) and outline:
        yield 'has a polygon outside of a list of polygons'
        outline = entry['segmentation'] = [outline]
    if outline and not isinstance(outline, list):
        raise _Fault(
            '"segmentation" must be a list of polygons or run lengths, got '
            f'{shown(outline)}'
        )
    limit, kept = max(size), []
    for part in outline or ():
        span = _span(part) if isinstance(part, list) else None
        if span is None and part != []:
            raise _Fault(
                '"segmentation" must have polygons [x, y, x, y, ...] in pixels, got '
                f'{shown(part)}'
            )
        if len(part) % 2:
            raise _Fault(f'has a polygon of {len(part)} numbers, an x without its y')
        if span and not -limit <= span[0] <= span[1] <= 2 * limit:
            raise _Fault(
                f'has a polygon from {span[0]} to {span[1]}, far outside its image of '
                f'{size[0]} x {size[1]} pixels (height x width)'
            )
        if len(part) >= 6:
            kept.append(part)
        elif part:
            yield 'has a polygon of fewer than three points, which is left out'
    if outline:
        entry['segmentation'] = kept
    if not kept:
        del entry['segmentation']


def _check_rle(rle: dict, size: tuple[int, int]) -> int:
    """Check run lengths, which must have the size of their image; return their area.

    pycocotools decodes lengths that end early to whatever was in memory.

    Raises:
        _Fault: they have another size, or are damaged.
    """
    given, counts = rle.get('size'), rle.get('counts')
    if not isinstance(given, list) or len(given) != 2 or not _span(given):
        raise _Fault(f'"segmentation" must have a "size" of two, got {shown(given)}')
    if tuple(given) != size:
        raise _Fault(
            f'has a mask of {given[0]} x {given[1]} pixels (height x width), but its '
            f'image has {size[0]} x {size[1]}'
        )
    rle['size'] = list(size)  # whole numbers
    total = size[0] * size[1]
    if isinstance(counts, str):
        lengths = _run_lengths(counts)
    elif isinstance(counts, list) and {int}.issuperset(map(type, counts)):
        # A longer one than the image would overflow.
        lengths = np.array([min(count, total + 1) for count in counts] or [0])
    else:
        raise _Fault(f'"counts" must be run lengths, got {shown(counts)}')
    if lengths.min() < 0 or lengths.sum() != total:
        raise _Fault(
            f'has run lengths {shown(counts)}, which do not add up to the {total} '
            'pixels of its image'
        )
    return int(lengths[1::2].sum())


def _run_lengths(counts: str) -> np.ndarray:
    """Decode compressed run lengths: five bits a letter, as differences from the third.

    Raises:
        _Fault: the text is none.
    """
    letters = np.frombuffer(counts.encode('ascii', 'replace'), np.uint8)
    letters = letters.astype(np.int64) - 48
    last = letters & 32 == 0
    if not letters.size or letters.min() < 0 or letters.max() > 63 or not last[-1]:
        raise _Fault(f'has damaged run lengths {shown(counts)}')
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(letters.size) - np.repeat(starts, ends - starts + 1)
    if places.max() > 6:  # longer than any image
        raise _Fault(f'has damaged run lengths {shown(counts)}')
    lengths = np.add.reduceat((letters & 31) << (5 * places), starts)
    lengths -= (letters[ends] & 16 > 0) * (1 << (5 * (places[ends] + 1)))
    for part in (lengths[1::2], lengths[2::2]):
        np.cumsum(part, out=part)
    return lengths


def _encoded(outline: list | dict, size: tuple[int, int]) -> dict:
    """Return an outline as one compressed mask of pycocotools."""
    if isinstance(outline, list):
        return coco_mask.merge(coco_mask.frPyObjects(outline, *size))
    if isinstance(outline['counts'], list):
        return coco_mask.frPyObjects(outline, *size)
    return outline


def outline_box(outline: list | dict) -> list[float]:
    """Return x, y, width and height of polygons or run lengths."""
    if isinstance(outline, dict):
        return coco_mask.toBbox(_encoded(outline, outline['size'])).tolist()
    xs = [x for part in outline for x in part[::2]]
    ys = [y for part in outline for y in part[1::2]]
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]


def object_area(entry: dict, size: tuple[int, int]) -> float:
    """Return the pixels of an annotation's outline, or of its box without one."""
    if 'segmentation' in entry:
        return int(coco_mask.area(_encoded(entry['segmentation'], size)))
    return entry['bbox'][2] * entry['bbox'][3]


def _check_boxes(
    annotations: list[dict], sizes: np.ndarray, labels: _Labels
) -> dict[str, list[int]]:
    """Compare all boxes with their images.

    Args:
        annotations: with boxes of four finite numbers.
        sizes: height and width of each one's image, shape (N, 2).
        labels: names annotations.

    Returns:
        Positions of unusual boxes, by what is unusual.

    Raises:
        ValueError: a box, or the form of all boxes, cannot be meant.
    """
    if not annotations:
        return {}
    boxes = np.array([entry['bbox'] for entry in annotations], np.float64)
    x, y, w, h = boxes.T
    height, width = sizes.T
    x2, y2 = x + w, y + h

    def text(position: int) -> str:
        rows, columns = sizes[position].tolist()
        return (
            f'{shown(annotations[position]["bbox"])} [x, y, width, height] in an image '
            f'of {rows} x {columns} pixels (height x width)'
        )

    for wrong, what in (
        ((w < 0) | (h < 0), 'has a negative width or height, the box'),
        (
            (x < -width) | (y < -height) | (x2 > 2 * width) | (y2 > 2 * height),
            'lies far outside its image, the box',
        ),
    ):
        if wrong.any():
            first = int(wrong.argmax())
            labels.fault(first, f'{what} {text(first)}', int(wrong.sum()))
            labels.raise_faults()
    beyond = (x < -SLACK) | (y < -SLACK) | (x2 > width + SLACK) | (y2 > height + SLACK)
    first = int(beyond.argmax())
    inside = (w > x) & (h > y) & (w <= width + SLACK) & (h <= height + SLACK)
    if len(boxes) > 2 and inside.all() and 3 * beyond.sum() >= len(boxes):
        raise UserError(
            f'{labels[first]}: {int(beyond.sum())} of {len(boxes)} boxes reach beyond '
            f'their images, and none would as [x1, y1, x2, y2], such as {text(first)}; '
            'write widths and heights'
        )
    if (boxes >= 0).all() and max(x2.max(), y2.max()) <= 1 < sizes.min():
        raise UserError(
            f'{labels[0]}: all boxes lie in the first pixel of their images, such as '
            f'{text(0)}; write pixels, not fractions of the image'
        )
    outside = (x2 <= 0) | (y2 <= 0) | (x >= width) | (y >= height)
    kinds = {
        'reaches beyond its image, the box': beyond & ~outside,
        'lies outside its image, the box': outside,
        'is narrower than a pixel, the box': ((w < 1) | (h < 1)) & ~outside,
    }
    found = {}
    for what, chosen in kinds.items():
        positions = np.flatnonzero(chosen).tolist()
        if positions:
            found[f'{what} {text(positions[0])}'] = positions
    return found


def count_outlines(annotations: list[dict]) -> Counter:
    """Count objects with an outline, with the rectangle of their box, and with none."""
    return Counter(map(_kind_of_outline, annotations))


def _kind_of_outline(entry: dict) -> str:
    outline = entry.get('segmentation')
    if outline is None:
        return 'none'
    if not isinstance(outline, list) or len(outline) != 1 or len(outline[0]) > 10:
        return 'outline'
    points = {*zip(outline[0][::2], outline[0][1::2], strict=True)}
    x, y, w, h = entry['bbox']
    corners = {(x, y), (x + w, y), (x + w, y + h), (x, y + h)}
    same = all(min(dist(p, c) for c in corners) <= 1.5 for p in points)
    return 'rectangle' if same and len(points) == 4 else 'outline'
