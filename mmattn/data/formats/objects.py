"""Read the objects of any format."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from mmattn.errors import UserError

from ..coco_json import check_coco, count_outlines, object_area, shown
from ..image_files import images_in
from ..layouts import Part
from ..notes import say, some
from ..own_data import Picture
from .coco import read_coco
from .content import OBJECT, Content, rectangle
from .csv import read_csv
from .labelme import read_labelme
from .via import read_via
from .voc import read_voc
from .yolo import read_yolo

READERS: dict[str, Callable[..., Content]] = {
    'coco': read_coco,
    'csv': read_csv,
    'labelme': read_labelme,
    'via': read_via,
    'voc': read_voc,
    'yolo': read_yolo,
}


def read_objects(
    kind: str, parts: dict[str, list[Part]], *extra: Path, masks: bool | None
) -> tuple[dict[str, list[Picture]], list[str]]:
    """Read annotated objects, and print what is unusual.

    Args:
        kind: the format, of `READERS`.
        parts: images and annotations of each split.
        extra: further arguments of the reader, the names of yolo.
        masks: whether objects get masks. None chooses masks if at least half of the
            objects have outlines other than the rectangles of their boxes.

    Returns:
        Pictures with objects of each split, and the names of their classes.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is damaged, or cannot be meant.
    """
    documents = {
        split: [(part, _document(READERS[kind](part, *extra), part)) for part in each]
        for split, each in parts.items()
    }
    _tell_of_unlisted([pair for each in documents.values() for pair in each])
    found = [document for each in documents.values() for _, document in each]
    if kind in ('csv', 'via'):
        _share_the_class(found)
    classes = list(dict.fromkeys(c['name'] for d in found for c in d['categories']))
    if kind not in ('coco', 'yolo'):  # where names have no order
        classes.sort()
    counts = sum((count_outlines(d['annotations']) for d in found), Counter())
    masks = _choose(counts, masks)
    pictures = {
        split: _distinct(
            [
                _pictures(document, part.images, classes, masks)
                for part, document in each
            ]
        )
        for split, each in documents.items()
    }
    return pictures, classes


def _document(content: Content, part: Part) -> dict:
    """Return the checked content of a COCO json."""
    document = {k: v for k, v in vars(content).items() if v is not None}
    places, name = document.pop('places'), str(part.annotations)
    for note in check_coco(document, name, places=places):
        say(note)
    if any('bbox' not in entry for entry in document['annotations']):
        raise UserError(
            f'{name} has captions or panoptic segments, which are no objects: name the '
            'file of the objects'
        )
    _leave_out_the_root(document)
    return document


def _share_the_class(documents: list[dict]):
    """Take the objects of files without classes for the only one that others name."""
    found = [[c['name'] for c in document['categories']] for document in documents]
    named = {name for names in found if names != [OBJECT] for name in names}
    if len(named) == 1 and [OBJECT] in found:
        (name,) = named
        say(f'objects without a class are taken for {shown(name)}, the only class')
        for document in documents:
            document['categories'] = [
                c | dict(name=name) for c in document['categories']
            ]


def _tell_of_unlisted(documents: list[tuple[Part, dict]]):
    """Tell of images that no annotations list: nobody may have looked at them."""
    listed = {}
    for part, document in documents:
        names = (image['file_name'] for image in document['images'])
        listed.setdefault(part.images, set()).update(names)
    for folder, names in listed.items():
        files = (path.relative_to(folder).as_posix() for path in images_in(folder))
        if unlisted := set(files) - names:
            what = f'images of {folder} that no annotations list'
            say(f'{some(len(unlisted), unlisted, what)}, are left out')


def _distinct(parts: list[list[Picture]]) -> list[Picture]:
    """Return the pictures of several folders, in folders if names are repeated."""
    names = Counter(picture.name for part in parts for picture in part)
    if len(parts) > 1 and max(names.values()) > 1:
        for number, part in enumerate(parts):
            for picture in part:
                picture.name = f'{number}/{picture.name}'
    return [picture for part in parts for picture in part]


def _leave_out_the_root(document: dict):
    """Leave out the category above all others, without objects, of Roboflow's files."""
    categories = document['categories']
    used = {entry['category_id'] for entry in document['annotations']}
    for root in categories:
        others = [c for c in categories if c is not root]
        if (
            root['id'] not in used
            and others
            and all(c.get('supercategory') == root['name'] for c in others)
        ):
            say(
                f'the class {shown(root["name"])} has no object and contains the others'
            )
            document['categories'] = others
            return


def _choose(counts: Counter, masks: bool | None) -> bool:
    """Return whether objects get masks, and say why."""
    total, outlines = counts.total(), counts['outline']
    chosen = outlines > 0 and 2 * outlines >= total if masks is None else masks
    text = f'{outlines} of {total} objects have an outline'
    if counts['rectangle']:
        text += f', {counts["rectangle"]} one that is the rectangle of their box'
    if chosen and counts['none']:
        text += f', and {counts["none"]} get the rectangle of their box'
    what, other = ('masks', '--boxes') if chosen else ('boxes alone', '--masks')
    print(
        f'objects get {what}: {text}'
        + (f'; {other} decides otherwise' * (masks is None))
    )
    return chosen


def _pictures(
    document: dict, images: Path, classes: list[str], masks: bool
) -> list[Picture]:
    """Return pictures with objects of at least a pixel, cut at the image's border."""
    labels = {c['id']: classes.index(c['name']) for c in document['categories']}
    by_name, by_id, tiny = {}, {}, 0
    for image in document['images']:
        name, size = image['file_name'], (image['height'], image['width'])
        by_id[image['id']] = by_name.setdefault(
            name, Picture(images / name, size, name=name)
        )
    for entry in document['annotations']:
        picture = by_id[entry['image_id']]
        height, width = picture.size
        x, y, w, h = entry['bbox']
        x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + w, width), min(y + h, height)
        box = [x1, y1, x2 - x1, y2 - y1]
        outline = entry.get('segmentation', [rectangle(box)]) if masks else None
        if x2 - x1 < 1 or y2 - y1 < 1:
            tiny += 1
            continue
        if masks and not object_area(dict(segmentation=outline), picture.size):
            tiny += 1
            continue
        if entry['iscrowd'] or entry.get('ignore'):
            picture.crowds.add(len(picture.labels))
        picture.labels.append(labels[entry['category_id']])
        picture.boxes.append(box)
        if masks:
            picture.masks.append(outline)
    if tiny:
        say(f'{tiny} objects of less than a pixel, or outside of images, are left out')
    return list(by_name.values())
