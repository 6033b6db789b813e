"""Read a COCO json with its images."""

from pathlib import Path, PureWindowsPath

from tqdm import tqdm

from mmattn.errors import UserError

from ..coco_json import NUMBERS, entries_of, is_text, read_json, shown
from ..layouts import Part
from .content import Content, checked_size


def read_coco(part: Part) -> Content:
    """Read a COCO json, whose images may lie in folders inside the part's."""
    images, file = part.images, part.annotations
    document = read_json(file)
    if not isinstance(document, dict):
        raise UserError(f'{file} must be an object of COCO, got {shown(document)}')
    entries = entries_of(document, 'images', str(file))
    for entry in tqdm(entries, 'read', disable=None):
        if not is_text(entry.get('file_name')):
            break  # the check of all images says what is wrong
        place = f'{file}: image {shown(entry.get("id"))}'
        name = PureWindowsPath(entry['file_name'])  # knows / and \
        if name.is_absolute() or name.drive or name.root or '..' in name.parts:
            raise UserError(
                f'{place}: "file_name" must lie inside {images}, got '
                f'{shown(entry["file_name"])}'
            )
        path = _file(images, name.parts)
        if path is None:
            raise UserError(
                f'{place}: "file_name" must be a file in {images}, got '
                f'{shown(entry["file_name"])}'
            )
        entry['file_name'] = path.relative_to(images).as_posix()
        declared = entry.get('height'), entry.get('width')
        if all(d is None or type(d) in NUMBERS for d in declared):
            entry['height'], entry['width'] = checked_size(
                path, declared, place, part.channels
            )
    names = 'images', 'annotations', 'categories'
    return Content(*(document.get(name) for name in names))


def _file(images: Path, parts: tuple[str, ...]) -> Path | None:
    """Return the file of an image, None if there is none.

    Paths in a json may begin with the folder of the images, `images/a.jpg`, as LabelMe
    and Label Studio write them.
    """
    outer = images.absolute().parts
    for count in range(len(parts)):
        path = images.joinpath(*parts[count:])
        if parts[:count] == outer[len(outer) - count :] and path.is_file():
            return path
    return None
