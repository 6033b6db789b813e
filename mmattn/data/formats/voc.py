"""Read Pascal VOC's XML files."""

import xml.etree.ElementTree as ET
from pathlib import Path

from tqdm import tqdm

from mmattn.errors import UserError

from ..coco_json import shown
from ..image_files import annotation_files, image_files
from ..layouts import Part
from ..notes import some
from .content import Content, checked_size


def read_voc(part: Part) -> Content:
    """Read Pascal VOC's XML files. Objects called difficult become crowds."""
    content, classes = Content(), set()
    files = image_files(part.images, beside=part.annotations, names=part.names)
    texts = annotation_files(part.annotations, '.xml')
    extra = texts.keys() - files.keys() if part.names is None else set()
    if not texts:
        hint = ''
        if part.images == part.annotations:
            hint = ': pass a folder of XML files after that of the images'
        raise UserError(f'{part.annotations} has no XML file{hint}')
    if extra:
        raise UserError(
            f'{part.annotations}: {some(len(extra), extra, "files without an image")} '
            f'in {part.images}; an image and its file have the same name, apart from '
            'the suffix'
        )
    for name, path in tqdm(files.items(), 'read', disable=None):
        if name not in texts:  # a note counts these
            continue
        file = texts[name]
        root = _xml(file)
        declared = [_number(root, f'size/{side}', file) for side in ('height', 'width')]
        # Some tools write 0 for a size that they do not know.
        declared = tuple(d or None for d in declared)
        size = checked_size(path, declared, str(file), part.channels)
        content.add_image(path.relative_to(part.images).as_posix(), size)
        for number, found in enumerate(root.findall('object'), 1):
            place = f'{file}: object {number}'
            label = (found.findtext('name') or '').strip()
            if not label:
                raise UserError(f'{place} has no <name>')
            classes.add(label)
            content.add(
                place,
                category_id=label,
                iscrowd=int(bool(_number(found, 'difficult', place))),
                **_voc_shape(found, place),
            )
    content.name_categories(classes)
    return content


def _xml(path: Path) -> ET.Element:
    try:
        root = ET.parse(path).getroot()
    except (ET.ParseError, LookupError, ValueError) as error:
        raise UserError(f'{path} cannot be read as XML: {error}') from None
    if root.tag != 'annotation':
        raise UserError(
            f'{path} must be an <annotation>, got <{shown(root.tag)[1:-1]}>: export '
            'the annotations as Pascal VOC or COCO'
        )
    return root


def _number(element: ET.Element, key: str, place: str | Path) -> float | None:
    text = element.findtext(key)
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
        return int(value) if value.is_integer() else value
    except ValueError as error:
        raise UserError(
            f'{place}: <{key}> must be a number, got {shown(text)}'
        ) from error


def _voc_shape(element: ET.Element, place: str) -> dict:
    """Return the box and the polygon of an object.

    Pascal VOC counts pixels from 1, and the last ones belong to the box.
    """
    shape = {}
    if element.find('bndbox') is not None:
        keys = 'xmin', 'ymin', 'xmax', 'ymax'
        box = [_number(element, f'bndbox/{key}', place) for key in keys]
        if None in box:
            raise UserError(f'{place}: <bndbox> must have {", ".join(keys)}')
        x1, y1, x2, y2 = box
        shape['bbox'] = [x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1]
    points = element.find('polygon')
    if points is not None:
        values, number = [], 1
        while points.find(f'x{number}') is not None:
            pair = [_number(points, f'{axis}{number}', place) for axis in 'xy']
            if None in pair:
                raise UserError(f'{place}: <polygon> has x{number} without y{number}')
            values += [value - 1 for value in pair]
            number += 1
        shape['segmentation'] = [values]
    if not shape:
        raise UserError(f'{place} has no <bndbox>')
    return shape
