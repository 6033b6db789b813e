"""Read the objects of any format."""

from collections.abc import Callable
from pathlib import Path

from mmattn.errors import UserError

from ..coco_json import check_coco, count_outlines, object_area, shown
from ..own_data import Picture
from .coco import read_coco
from .content import Content, rectangle, say
from .labelme import read_labelme
from .voc import read_voc
from .yolo import read_yolo

READERS: dict[str, Callable[..., Content]] = {
    'coco': read_coco,
    'labelme': read_labelme,
    'voc': read_voc,
    'yolo': read_yolo,
}


def read_objects(
    kind: str, images: Path, annotations: Path, *extra: Path, masks: bool | None
) -> tuple[list[Picture], list[str]]:
    """Read annotated objects, and print what is unusual.

    Args:
        kind: the format, of `READERS`.
        images: folder of images.
        annotations: file or folder.
        extra: further arguments of the reader, the YAML file of yolo.
        masks: whether objects get masks. None chooses masks if at least half of the
            objects have outlines other than the rectangles of their boxes.

    Returns:
        Pictures with objects, and the names of their classes.

    Raises:
        OSError: a file cannot be read.
        ValueError: it is damaged, or cannot be meant.
    """
    if kind != 'coco' and not annotations.is_dir():
        raise UserError(f'{annotations} is no folder')
    content = READERS[kind](images, annotations, *extra)
    document = {k: v for k, v in vars(content).items() if v is not None}
    places = document.pop('places')

    def where(index: int, entry: dict) -> str:
        return places[index]

    name = str(annotations)
    for note in check_coco(document, name, where=where if places else None):
        say(note)
    _leave_out_the_root(document)
    masks = _choose(document['annotations'], masks)
    return _pictures(document, images, masks), [
        category['name'] for category in document['categories']
    ]


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


def _choose(annotations: list[dict], masks: bool | None) -> bool:
    """Return whether objects get masks, and say why."""
    counts = count_outlines(annotations)
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


def _pictures(document: dict, images: Path, masks: bool) -> list[Picture]:
    """Return pictures with objects of at least a pixel, cut at the image's border."""
    labels = {c['id']: i for i, c in enumerate(document['categories'])}
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
