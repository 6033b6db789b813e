"""Read the classes of images from a CSV file, as Kaggle's competitions have them."""

from pathlib import Path

from mmattn.errors import UserError

from .class_folders import ClassImage
from .coco_json import shown
from .formats.content import ImageNames
from .formats.csv import COLUMNS, read_cells
from .layouts import Part
from .notes import say, some

FIRST = 20  # lines in which the column of the images is looked for


def read_table(part: Part) -> list[ClassImage]:
    """Return the images of a CSV file with their classes.

    The classes are the column beside that of the images, or one of a usual name, or the
    names of columns of which one is 1 and the others are 0.

    Raises:
        ValueError: there is no such column, or a line has no class or no image.
    """
    file, names = part.annotations, ImageNames(part.images)
    lines = [(n, row) for n, row in enumerate(read_cells(file), 1) if any(row)]
    column = _image_column(file, [row for _, row in lines[:FIRST]], names)
    head, first = None, lines[0][1]
    if not names.all_of(first[column]):
        head, lines = first, lines[1:]
    places = _class_columns(file, first, column)
    found = {}
    for number, row in lines:
        where = f'{file}: line {number}'
        if len(row) < len(first) or any(row[len(first) :]):
            raise UserError(f'{where} must have {len(first)} cells, got {shown(row)}')
        path = names.find(row[column], where)
        label = row[places[0]] if len(places) == 1 else _marked(row, head, places)
        if not label or label in ('.', '..') or {'/', '\\'} & {*label}:
            raise UserError(
                f'{where} must name one class, as a folder may be called, got '
                f'{shown([row[place] for place in places])}'
            )
        if found.setdefault(path, label) != label:
            raise UserError(f'{where}: {path} has the class {found[path]}, too')
    if unlisted := names.keys() - found.keys():
        what = f'images of {part.images} that {file} does not list'
        unlisted = {names[path] for path in unlisted}
        say(f'{some(len(unlisted), unlisted, what)}, are left out')
    return [ClassImage(path, label, Path(names[path])) for path, label in found.items()]


def _image_column(file: Path, rows: list[list[str]], names: ImageNames) -> int:
    """Return the column of which most cells name images.

    Numbers of lines may name images, too: of equal columns, one with a usual name
    counts, then one with suffixes. A column without a name is an index.
    """
    ranks = {}
    for place, name in enumerate(rows[0] if rows else ()):
        cells = [row[place] for row in rows if place < len(row)]
        matches = [cell for cell in cells if names.all_of(cell)]
        suffixes = sum(bool(Path(cell).suffix) for cell in matches)
        if name and matches:
            ranks[place] = len(matches), name.lower() in COLUMNS['image'], suffixes
    if not ranks:
        raise UserError(
            f'{file} must have a column that names images in {names.folder}, and one '
            f'of their classes, got {shown(rows)}'
        )
    return max(ranks, key=ranks.get)


def _class_columns(file: Path, head: list[str], column: int) -> list[int]:
    """Return the column of the classes, or those of a class each."""
    others = [place for place, name in enumerate(head) if name and place != column]
    if not others:
        raise UserError(f'{file} must have a column of classes, got {shown(head)}')
    names = [head[place].lower() for place in others]
    usual = next((name for name in COLUMNS['label'] if name in names), None)
    return others if usual is None else [others[names.index(usual)]]


def _marked(row: list[str], head: list[str] | None, places: list[int]) -> str | None:
    """Return the class whose column has a 1, or None unless the others have a 0."""
    values = [row[place].removesuffix('.0') for place in places]
    if head is None or sorted(values) != ['0'] * (len(values) - 1) + ['1']:
        return None
    return head[places[values.index('1')]]
