"""Read CSV files with a box in each line."""

import csv
import json
from pathlib import Path

from tqdm import tqdm

from mmattn.errors import UserError

from ..coco_json import shown
from ..image_files import image_size
from ..layouts import Part
from ..notes import say
from .content import OBJECT, Content, ImageNames

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
    names = ImageNames(part.images)
    content, classes, boxes = Content(), set(), {}
    for line, row in _rows(file):
        place = f'{file}: line {line}'
        entries = boxes.setdefault(names.find(row.get('image'), place), [])
        if box := _box(row, place):
            label = row.get('label') or OBJECT
            classes.add(label)
            entries.append((place, dict(category_id=label, bbox=box)))
    for path, entries in tqdm(boxes.items(), 'read', disable=None):
        content.add_image(names[path], image_size(path, part.channels))
        for place, entry in entries:
            content.add(place, **entry)
    content.name_categories(classes)
    return content


def read_cells(file: Path) -> list[list[str]]:
    """Return the cells of each line of a CSV file."""
    try:
        with file.open(newline='', encoding='utf-8-sig') as opened:
            mark = max(',;\t', key=opened.readline().count)
            opened.seek(0)
            rows = csv.reader(opened, delimiter=mark)
            return [[cell.strip() for cell in row] for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f'{file} is no CSV file: {error}') from error


def _rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the lines with their numbers, by the keys of `COLUMNS`."""
    rows = read_cells(file)
    if (found := _places(rows)) is None:
        raise UserError(
            f'{file} must have columns of the image and of its box, such as '
            f'filename,xmin,ymin,xmax,ymax,class, got {shown(rows[:1])}'
        )
    places, first = found
    if 'label' not in places:
        say(
            f'{file} has no column of classes, such as {COLUMNS["label"][0]}, so all '
            f'objects are of one; its columns are {shown(rows[0])}'
        )
    return [
        (number, {k: row[place] for k, place in places.items() if place < len(row)})
        for number, row in enumerate(rows[first:], first + 1)
        if any(row)
    ]


def has_boxes(file: Path) -> bool:
    """Return whether a CSV file has columns of boxes."""
    return _places(read_cells(file)) is not None


def _places(rows: list[list[str]]) -> tuple[dict[str, int], int] | None:
    """Return the place of each column and the first line with values, or None."""
    head = [cell.lower() for cell in rows[0]] if rows else []
    places = {
        key: next(head.index(name) for name in names if name in head)
        for key, names in COLUMNS.items()
        if not set(head).isdisjoint(names)
    }
    if places.get('label') == places.get('image'):  # `name` may be either
        places.pop('label', None)
    if len(head) == len(PLAIN) and 'image' not in places:
        return {key: place for place, key in enumerate(PLAIN)}, 0
    shapes = ({*CORNERS}, {*SIDES}, {'bbox'})
    if 'image' in places and any(each <= places.keys() for each in shapes):
        return places, 1
    return None


def _box(row: dict[str, str], place: str) -> list[float] | None:
    """Return x, y, width and height; None where all are empty."""
    keys = next((k for k in (CORNERS, SIDES) if row.keys() >= {*k}), ('bbox',))
    cells = [row.get(key, '') for key in keys]
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
