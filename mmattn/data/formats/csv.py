"""Read CSV files with a box in each line."""

import csv
import json
from pathlib import Path, PureWindowsPath

from tqdm import tqdm

from mmattn.errors import UserError

from ..coco_json import shown
from ..image_files import image_size, images_in
from ..layouts import Part
from ..notes import say
from .content import Content

# Names of columns in lower case: TensorFlow's and Roboflow's, DeepForest's, wheat's.
COLUMNS = {
    'image': (
        *('filename', 'image_path', 'image', 'file_name', 'image_id', 'path'),
        *('image_name', 'imagename', 'imageid', 'img', 'file', 'filepath', 'name'),
    ),
    'label': (
        *('class', 'label', 'class_name', 'category', 'classname', 'labels'),
        *('label_name', 'labelname', 'category_name', 'class_id', 'classid'),
        *('category_id', 'label_id', 'name'),
    ),
    'x1': ('xmin', 'x_min', 'x1', 'left'),
    'y1': ('ymin', 'y_min', 'y1', 'top'),
    'x2': ('xmax', 'x_max', 'x2', 'right'),
    'y2': ('ymax', 'y_max', 'y2', 'bottom'),
    'x': ('x', 'bbox_x'),
    'y': ('y', 'bbox_y'),
    # `width` and `height` are the image's beside corners.
    'w': ('w', 'bbox_width', 'bbox_w', 'width'),
    'h': ('h', 'bbox_height', 'bbox_h', 'height'),
    'bbox': ('bbox',),  # "[x, y, width, height]"
}
CORNERS, SIDES = ('x1', 'y1', 'x2', 'y2'), ('x', 'y', 'w', 'h')
PLAIN = ('image', *CORNERS, 'label')  # the columns of a file without names of them


def read_csv(part: Part) -> Content:
    """Read boxes by the names of the columns; an image with no box has an empty line.

    Without a column of classes, all objects are of one.
    """
    file = part.annotations
    files = {path: path.relative_to(part.images) for path in images_in(part.images)}
    by_name = {}
    for path, name in files.items():
        whole = name.with_suffix('')
        for each in {name.as_posix(), name.name, whole.as_posix(), whole.name}:
            by_name.setdefault(each, []).append(path)
    content, classes, boxes = Content(), set(), {}
    for line, row in _rows(file):
        place = f'{file}: line {line}'
        name = PureWindowsPath(row.get('image', '')).as_posix()
        found = by_name.get(name) or by_name.get(PureWindowsPath(name).name, [])
        if len(found) != 1:
            raise UserError(
                f'{place} must name one image in {part.images}, got {shown(name)}, '
                f'which is {len(found)}'
            )
        entries = boxes.setdefault(found[0], [])
        if box := _box(row, place):
            label = (row.get('label') or 'object').strip()
            classes.add(label)
            entries.append((place, dict(category_id=label, bbox=box)))
    for path, entries in tqdm(boxes.items(), 'read', disable=None):
        content.add_image(files[path].as_posix(), image_size(path, part.channels))
        for place, entry in entries:
            content.add(place, **entry)
    content.name_categories(classes)
    return content


def _rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the lines with their numbers, by the keys of `COLUMNS`."""
    try:
        with file.open(newline='', encoding='utf-8-sig') as opened:
            mark = max(',;\t', key=opened.readline().count)
            opened.seek(0)
            rows = list(csv.reader(opened, delimiter=mark))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'{file} is no CSV file: {error}') from error
    head = [cell.strip().lower() for cell in rows[0]] if rows else []
    keys = {
        key: next((head.index(name) for name in names if name in head), None)
        for key, names in COLUMNS.items()
    }
    places, first = {k: place for k, place in keys.items() if place is not None}, 1
    if places.get('label') == places.get('image'):  # `name` may be either
        places.pop('label', None)
    if len(head) == len(PLAIN) and 'image' not in places:
        places, first = {key: place for place, key in enumerate(PLAIN)}, 0
    shapes = ({*CORNERS}, {*SIDES}, {'bbox'})
    if 'image' not in places or not any(each <= places.keys() for each in shapes):
        raise UserError(
            f'{file} must have columns of the image and of its box, such as '
            f'filename,xmin,ymin,xmax,ymax,class, got {shown(head)}'
        )
    if 'label' not in places:
        say(
            f'{file} has no column of classes, such as {COLUMNS["label"][0]}, so all '
            f'objects are of one; its columns are {shown(head)}'
        )
    return [
        (number, {k: row[place] for k, place in places.items() if place < len(row)})
        for number, row in enumerate(rows[first:], first + 1)
        if any(cell.strip() for cell in row)
    ]


def _box(row: dict[str, str], place: str) -> list[float] | None:
    """Return x, y, width and height; None where all are empty."""
    keys = next((k for k in (CORNERS, SIDES) if row.keys() >= {*k}), ('bbox',))
    cells = [row.get(key, '').strip() for key in keys]
    if not any(cells):
        return None
    try:
        values = json.loads(cells[0]) if keys == ('bbox',) else [*map(float, cells)]
        a, b, c, d = [int(v) if float(v).is_integer() else float(v) for v in values]
    except (OverflowError, TypeError, ValueError) as error:
        raise UserError(
            f'{place} must have four numbers of pixels, got {shown(cells)}'
        ) from error
    return [a, b, c - a, d - b] if keys == CORNERS else [a, b, c, d]
