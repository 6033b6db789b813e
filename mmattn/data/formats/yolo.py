"""Read YOLO's text files."""

from pathlib import Path

from tqdm import tqdm

from mmattn.errors import UserError

from ..coco_json import shown
from ..image_files import annotation_files, image_files, image_size
from ..layouts import Part
from ..notes import say, some
from ..yolo_yaml import read_lines, yolo_names
from .content import Content

FRACTION_SLACK = 0.01  # by which rounded fractions of YOLO leave the image


def read_yolo(part: Part, names: Path | list[str]) -> Content:
    """Read YOLO's text files: boxes, polygons, or boxes with points of a pose.

    An image without a file has no object.

    Args:
        part: images and text files.
        names: of the classes, or the file that has them.
    """
    if isinstance(names, Path):
        classes, values = yolo_names(names)
    else:
        classes, values, names = dict(enumerate(names)), 0, '--classes'
    content = Content(categories=[dict(id=i, name=n) for i, n in classes.items()])
    files = image_files(part.images, beside=part.annotations, names=part.names)
    texts = annotation_files(part.annotations, '.txt')
    for name in ('classes', 'train', 'valid', 'val', 'test'):  # lists of other things
        if name not in files:
            texts.pop(name, None)
    unused = texts.keys() - files.keys()
    if unused and part.names is None and part.images != part.annotations:
        raise UserError(
            f'{part.annotations}: {some(len(unused), unused, "files without an image")}'
        )
    if empty := files.keys() - texts.keys():
        say(f'{some(len(empty), empty, "images without a file of labels")}: no object')
    for name, path in tqdm(files.items(), 'read', disable=None):
        size = image_size(path, part.channels)
        content.add_image(path.relative_to(part.images).as_posix(), size)
        if name not in texts:
            continue
        for number, line in enumerate(read_lines(texts[name]), 1):
            if line.split():
                place = f'{texts[name]}: line {number}'
                entry = _yolo_object(line.split(), size, values, place)
                if entry['category_id'] not in classes:
                    raise UserError(
                        f'{place} has the class {entry["category_id"]}, but {names} '
                        f'has the classes {shown(list(classes))}'
                    )
                content.add(place, **entry)
    return content


def _yolo_object(
    words: list[str], size: tuple[int, int], values: int, place: str
) -> dict:
    """Return the object of a line; `values` of a pose may follow its box."""
    try:
        label, *fractions = map(float, words)
        label = int(label) if label == int(label) else None
    except (ValueError, OverflowError):  # no number, nan, inf
        label, fractions = None, []
    count = len(fractions)
    # A sixth number is a confidence or the number of a track.
    is_box = count in (4, 5) or (values and count == 4 + values)
    if label is None or not (is_box or count >= 6 and count % 2 == 0):
        raise UserError(
            f'{place} must be "class x y width height" or "class x y x y x y ...", '
            f'got {shown(" ".join(words))}'
        )
    fractions = fractions[:4] if is_box else fractions
    wrong = [f for f in fractions if not -FRACTION_SLACK <= f <= 1 + FRACTION_SLACK]
    if wrong:
        raise UserError(
            f'{place} must have fractions of the image, 0 to 1, got {wrong[0]:g}; '
            'divide pixels by the width and the height'
        )
    height, width = size
    scaled = [f * (height if i % 2 else width) for i, f in enumerate(fractions)]
    if not is_box:
        return dict(category_id=label, segmentation=[scaled])
    x, y, w, h = scaled
    return dict(category_id=label, bbox=[x - w / 2, y - h / 2, w, h])
