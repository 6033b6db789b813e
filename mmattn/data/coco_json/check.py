"""Check the content of a COCO json, and complete it."""

from collections.abc import Iterator, Sequence

import numpy as np

from mmattn.errors import UserError

from .boxes import check_boxes
from .outlines import check_outline, is_outside, object_area, outline_box
from .values import NUMBERS, SIDE, Fault, is_text, more, shown, span

OUTSIDE = 'has an outline outside of its box; the outline counts'
MANY = 0.1  # of the objects
OTHERS = 'caption', 'segments_info'  # annotations of these are no objects


def check_coco(
    content,
    name: str,
    *,
    masks: bool = False,
    places: Sequence[str] = (),
) -> list[str]:
    """Check the content of a COCO json, and complete it in place.

    Boxes and areas that are missing are computed, and annotations are numbered anew.
    Some tools number them from 0, by text or for each image, which pycocotools takes
    for other objects or for none.

    Args:
        content: the value of a JSON file.
        name: name of the file.
        masks: whether each object must have an outline.
        places: name each annotation in errors; by default `NAME: annotation 17
            (image 3)`.

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
    sizes = _check_images(entries_of(content, 'images', name), name, notes)
    annotations = entries_of(content, 'annotations', name)
    content['annotations'] = annotations
    if annotations and any(key in annotations[0] for key in OTHERS):
        return notes
    categories = entries_of(content, 'categories', name, needed=bool(annotations))
    content['categories'] = categories
    ids = _by_id(categories, 'categories', 'name', name)

    def where(index: int) -> str:
        if places:
            return places[index]
        entry, label = annotations[index], f'annotations[{index}]'
        if 'id' in entry:
            label = f'annotation {shown(entry["id"])}'
        if 'image_id' in entry:
            label += f' (image {shown(entry["image_id"])})'
        return f'{name}: {label}'

    unusual, faults = {}, []
    for position, entry in enumerate(annotations):
        try:
            for note in _check_object(entry, sizes, ids, masks):
                unusual.setdefault(note, {})[position] = None
        except Fault as fault:
            faults.append(f'{where(position)}: {fault}')
    if faults:
        raise UserError(f'{faults[0]}{more(len(faults) - 1)}')
    outside = unusual.get(OUTSIDE, ())
    if len(outside) > max(1, MANY * len(annotations)):
        raise UserError(
            f'{where(min(outside))}: {len(outside)} of {len(annotations)} outlines '
            'lie outside of their boxes, so that the boxes are of another form; write '
            'x, y, width and height in pixels, or leave "bbox" out: boxes of outlines '
            'are computed'
        )
    image_sizes = [sizes[entry['image_id']] for entry in annotations]
    unusual |= check_boxes(annotations, np.array(image_sizes), where)
    notes += [
        f'{where(min(positions))}: {note}{more(len(positions) - 1)}'
        for note, positions in unusual.items()
    ]
    for number, entry in enumerate(annotations, 1):
        entry['id'] = number
    return notes


def entries_of(content: dict, key: str, name: str, needed: bool = True) -> list[dict]:
    """Return a list of objects of the file; `annotations` may be absent."""
    entries = content.get(key)
    if entries is None and (key == 'annotations' or not needed):
        return []
    if not isinstance(entries, list):
        got = shown(entries)
        if key not in content:
            got = f'the keys {shown(list(content))}: export the annotations as COCO'
        raise UserError(f'{name}: "{key}" must be a list, got {got}')
    for position, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise UserError(
                f'{name}: {key}[{position}] must be an object, got {shown(entry)}'
            )
    return entries


def _by_id(entries: list[dict], kind: str, key: str, name: str) -> dict:
    """Return images or categories by their ids.

    Raises:
        ValueError: an id is missing, repeated, or neither a whole number nor text; or
            the value of `key` is no text.
    """
    found, one = {}, {'images': 'image', 'categories': 'category'}[kind]
    for position, entry in enumerate(entries):
        number, text = entry.get('id'), entry.get(key)
        if type(number) not in (int, str):
            got = shown(number) if 'id' in entry else f'the keys {shown(list(entry))}'
            raise UserError(
                f'{name}: {kind}[{position}]: "id" must be a whole number or text, got '
                f'{got}'
            )
        place = f'{name}: {one} {shown(number)}'
        if not is_text(text):
            raise UserError(f'{place}: "{key}" must be text, got {shown(text)}')
        if number in found:
            raise UserError(
                f'{place} is listed twice, the second time as {shown(text)}'
            )
        found[number] = entry
    return found


def _check_images(
    images: list[dict], name: str, notes: list[str]
) -> dict[int | str, tuple[int, int]]:
    """Return the height and width of images by their ids."""
    sizes, files = {}, {}
    for key, image in _by_id(images, 'images', 'file_name', name).items():
        file = image['file_name']
        for side in ('height', 'width'):
            value = image.get(side)
            if type(value) not in NUMBERS or value not in range(1, SIDE + 1):
                raise UserError(
                    f'{name}: image {shown(key)} ({shown(file)}): "{side}" must be a '
                    f'whole number of pixels, 1 to {SIDE}, got {shown(value)}'
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


def _check_object(
    entry: dict, sizes: dict, categories: dict, masks: bool
) -> Iterator[str]:
    """Check an annotation apart from where its box lies, and complete it.

    Yields:
        What is unusual about it.

    Raises:
        Fault: it cannot be meant.
    """
    for key, known, listed in (
        ('image_id', sizes, 'images'),
        ('category_id', categories, 'categories'),
    ):
        value = entry.get(key)
        if key not in entry:
            raise Fault(f'has no {key}, got the keys {shown(list(entry))}')
        if type(value) not in (int, str) or value not in known:
            raise Fault(f'has the {key} {shown(value)}, which "{listed}" does not list')
    size = sizes[entry['image_id']]
    if entry.setdefault('iscrowd', 0) not in (0, 1):
        raise Fault(f'"iscrowd" must be 0 or 1, got {shown(entry["iscrowd"])}')
    if 'segmentation' in entry:
        yield from check_outline(entry, size)
    has_outline = 'segmentation' in entry
    if masks and not has_outline and not entry.get('ignore'):
        raise Fault('has no outline in "segmentation", which a model with masks needs')
    box = entry.get('bbox')
    if box is None or box == []:
        if not has_outline:
            raise Fault('has neither "bbox" nor "segmentation"')
        entry['bbox'] = outline_box(entry['segmentation'])
    elif not isinstance(box, list) or len(box) != 4 or not span(box):
        raise Fault(f'"bbox" must be four numbers of pixels, got {shown(box)}')
    elif has_outline and not entry['iscrowd']:
        outline = outline_box(entry['segmentation'])
        if is_outside(outline, box):
            yield OUTSIDE
            entry['bbox'] = outline
    area = entry.get('area')
    is_area = type(area) in NUMBERS and -(SIDE**2) <= area <= SIDE**2  # nan is none
    if area is not None and not is_area:
        raise Fault(f'"area" must be a number of pixels, got {shown(area)}')
    if area is None or area <= 0:
        if area is not None:
            yield f'has the area {area}; it is computed instead'
        entry['area'] = object_area(entry, size)
