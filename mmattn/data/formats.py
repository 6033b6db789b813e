"""Read objects annotated as COCO, YOLO, Pascal VOC or LabelMe files.

Each reader returns the content of a COCO json, which `coco_json` then checks, so that
what is wrong with a box or an outline is found alike in all formats.
"""

import math
import os
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath

import yaml
from tqdm import tqdm

from mmattn.errors import UserError

from .coco_json import (
    NUMBERS,
    check_coco,
    count_outlines,
    is_text,
    object_area,
    read_json,
    shown,
)
from .own_data import Picture, image_files, image_size

YAML_LIMIT = 2**17  # letters, which take about 2 s
YAML_DEPTH = 20
YAML_STARTS = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
YAML_ENDS = yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken
FRACTION_SLACK = 0.01  # by which rounded fractions of YOLO leave the image
CIRCLE = 32  # points of the polygon of a circle


@dataclass
class Content:
    """Annotations in the order and the form of COCO.

    Attributes:
        images: with `file_name`, relative to the folder of images, `height`, `width`.
        annotations: with `category_id`, and `bbox` or `segmentation`.
        categories: `id` and `name` of each class.
        places: names each annotation in errors; empty if their ids do.
    """

    images: list[dict] = field(default_factory=list)
    annotations: list[dict] = field(default_factory=list)
    categories: list[dict] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def add_image(self, path: Path, size: tuple[int, int]):
        number, (height, width) = len(self.images) + 1, size
        self.images.append(
            dict(id=number, file_name=path.name, height=height, width=width)
        )

    def add(self, place: str, **entry):
        """Add an object of the newest image."""
        self.places.append(place)
        self.annotations.append(dict(image_id=len(self.images), **entry))

    def name_categories(self, names: Iterable[str]):
        self.categories = [dict(id=name, name=name) for name in sorted(names)]


def say(text: str):
    """Print a note about the annotations."""
    print(f'note: {text}', file=sys.stderr)


def checked_size(path: Path, declared: tuple, place: str) -> tuple[int, int]:
    """Return the height and width of an image as it is trained on.

    Args:
        path: file of the image.
        declared: height and width of the annotations, None for unknown.
        place: names the annotations in the error.

    Raises:
        ValueError: the annotations are of another size.
    """
    size = image_size(path)
    if any(d is not None and d != s for d, s in zip(declared, size, strict=True)):
        raise UserError(
            f'{place} says that {path} has {" x ".join(map(shown, declared))} pixels '
            f'(height x width), but it has {size[0]} x {size[1]}, turned by its EXIF '
            'orientation if it has one: annotate the image as it is shown'
        )
    return size


def _some(count: int, names: Iterable[str], what: str) -> str:
    return f'{count} {what}, such as {shown(min(names))}'


def read_coco(images: Path, file: Path) -> Content:
    """Read a COCO json, whose images may lie in folders inside `images`."""
    document = read_json(file)
    if not isinstance(document, dict):
        raise UserError(f'{file} must be an object of COCO, got {shown(document)}')
    entries = document.get('images')
    for entry in tqdm(entries if isinstance(entries, list) else (), 'read'):
        if not isinstance(entry, dict) or not is_text(entry.get('file_name')):
            break  # the check of all images says what is wrong
        place = f'{file}: image {shown(entry.get("id"))}'
        name = PureWindowsPath(entry['file_name'])  # knows / and \
        if name.is_absolute() or name.drive or name.root or '..' in name.parts:
            raise UserError(
                f'{place}: "file_name" must lie inside {images}, got '
                f'{shown(entry["file_name"])}'
            )
        path = images / name.as_posix()
        if not os.path.isfile(path):
            raise UserError(
                f'{place}: "file_name" must be a file in {images}, got '
                f'{shown(entry["file_name"])}'
            )
        entry['file_name'] = name.as_posix()
        declared = entry.get('height'), entry.get('width')
        if all(d is None or type(d) in NUMBERS for d in declared):
            entry['height'], entry['width'] = checked_size(path, declared, place)
    names = 'images', 'annotations', 'categories'
    return Content(*(document.get(name) for name in names))


def read_yolo(images: Path, labels: Path, names: Path) -> Content:
    """Read YOLO's text files: boxes, polygons, or boxes with points of a pose.

    An image without a file has no object.
    """
    classes, values = _yolo_names(names)
    content = Content(categories=[dict(id=i, name=n) for i, n in classes.items()])
    files = image_files(images)
    texts = {path.stem: path for path in sorted(labels.glob('*.txt'))}
    texts.pop('classes', None)  # labelImg's list of names
    if unused := texts.keys() - files.keys():
        raise UserError(
            f'{labels}: {_some(len(unused), unused, "files without an image")}'
        )
    if empty := files.keys() - texts.keys():
        say(f'{_some(len(empty), empty, "images without a file of labels")}: no object')
    for stem, path in tqdm(files.items(), 'read'):
        size = image_size(path)
        content.add_image(path, size)
        if stem not in texts:
            continue
        for number, line in enumerate(_lines(texts[stem]), 1):
            if line.split():
                place = f'{texts[stem]}: line {number}'
                entry = _yolo_object(line.split(), size, values, place)
                if entry['category_id'] not in classes:
                    raise UserError(
                        f'{place} has the class {entry["category_id"]}, but {names} '
                        f'has the classes {shown(list(classes))}'
                    )
                content.add(place, **entry)
    return content


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f'{path} is no text file: {error}') from error


def _yolo_object(
    words: list[str], size: tuple[int, int], values: int, place: str
) -> dict:
    """Return the object of a line.

    Args:
        words: of the line.
        size: height and width of the image.
        values: number of values of a pose behind the box.
        place: names the line in errors.
    """
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


def _yolo_names(path: Path) -> tuple[dict[int, str], int]:
    """Return the names of classes, and the number of values of a pose.

    Raises:
        ValueError: the file is no YAML with names.
    """
    text = '\n'.join(_lines(path))
    try:
        if len(text) > YAML_LIMIT:
            raise UserError(f'it has more than {YAML_LIMIT} letters')
        _check_yaml(text)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        reason = ' '.join(str(error).split())
        raise UserError(f'{path} cannot be read as YAML: {reason}') from error
    names = content.get('names') if isinstance(content, dict) else None
    if isinstance(names, list):
        names = dict(enumerate(names))
    classes = {}
    for key, name in names.items() if isinstance(names, dict) else ():
        if type(key) is int or isinstance(key, str) and key.isdecimal():
            is_number = type(name) is int and 0 <= name < 10**9
            classes[int(key)] = str(name) if is_number else name
    if (
        not classes
        or len(classes) < len(names)
        or not all(map(is_text, classes.values()))
    ):
        raise UserError(
            f'{path} must have "names", a list or a map from numbers to names, got '
            f'{shown(names if names is not None else content)}'
        )
    classes = dict(sorted(classes.items()))
    shape = content.get('kpt_shape')
    is_pose = isinstance(shape, list) and {int}.issuperset(map(type, shape))
    return classes, math.prod(shape) if is_pose else 0


def _check_yaml(text: str):
    """Refuse what makes a small file long to read.

    A few aliases of aliases are more values than a memory holds, and the scanner takes
    the square of the depth.

    Raises:
        ValueError: there is an alias, or lists lie deep in each other.
        yaml.YAMLError: the text is no YAML.
    """
    depth = 0
    for token in yaml.scan(text):
        if isinstance(token, yaml.AliasToken):
            raise UserError('aliases (*name) are not supported')
        depth += isinstance(token, YAML_STARTS)
        depth -= isinstance(token, YAML_ENDS)
        if depth > YAML_DEPTH:
            raise UserError(f'it has more than {YAML_DEPTH} lists inside each other')


def read_voc(images: Path, folder: Path) -> Content:
    """Read Pascal VOC's XML files. Objects called difficult become crowds."""
    content, classes = Content(), set()
    files = image_files(images)
    texts = {path.stem: path for path in sorted(folder.glob('*.xml'))}
    for what, missing in (
        ('images without an XML file', files.keys() - texts.keys()),
        ('XML files without an image', texts.keys() - files.keys()),
    ):
        if missing:
            raise UserError(
                f'{folder}: {_some(len(missing), missing, what)}; an image and its '
                'file have the same name, apart from the suffix, and the file of an '
                'image without objects has none'
            )
    for stem, path in tqdm(files.items(), 'read'):
        file = texts[stem]
        root = _xml(file)
        declared = [_number(root, f'size/{side}', file) for side in ('height', 'width')]
        # Some tools write 0 for a size that they do not know.
        declared = tuple(d or None for d in declared)
        content.add_image(path, checked_size(path, declared, str(file)))
        for number, found in enumerate(root.findall('object'), 1):
            place = f'{file}: object {number}'
            name = (found.findtext('name') or '').strip()
            if not name:
                raise UserError(f'{place} has no <name>')
            classes.add(name)
            content.add(
                place,
                category_id=name,
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
            f'{path} must be an <annotation>, got <{shown(root.tag)[1:-1]}>'
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


def read_labelme(images: Path, folder: Path) -> Content:
    """Read LabelMe's JSON files: polygons, rectangles and circles.

    Shapes of one label and one group are one object. Images without a file are left
    out, since nobody may have looked at them.
    """
    content, classes, others = Content(), set(), Counter()
    files = image_files(images)
    by_name = {path.name: path for path in files.values()}
    used = {}
    for file in tqdm(sorted(folder.glob('*.json')), 'read'):
        document = read_json(file)
        shapes = document.get('shapes') if isinstance(document, dict) else None
        if not isinstance(shapes, list):
            raise UserError(f'{file} is no file of LabelMe: it has no list "shapes"')
        name = document.get('imagePath')
        name = PureWindowsPath(name).name if is_text(name) else None
        if name not in by_name:
            raise UserError(
                f'{file}: "imagePath" must be an image in {images}, got '
                f'{shown(document.get("imagePath"))}'
            )
        if name in used:
            raise UserError(f'{file} and {used[name]} are of one image, {name}')
        used[name] = file
        declared = document.get('imageHeight'), document.get('imageWidth')
        size = checked_size(by_name[name], declared, str(file))
        content.add_image(by_name[name], size)
        groups = {}
        for number, shape in enumerate(shapes):
            place = f'{file}: shapes[{number}]'
            label, kind, outline = _labelme_shape(shape, place)
            if outline is None:
                others[kind] += 1
                continue
            classes.add(label)
            group = shape.get('group_id')
            key = (label, group) if type(group) in (int, str) else (label, place)
            if key not in groups:
                content.add(place, category_id=label)
                groups[key] = content.annotations[-1]
            _extend(groups[key], kind, outline)
    if others:
        say(
            f'{others.total()} shapes of {folder} are left out, as they have no area: '
            + ', '.join(f'{count} of {kind}' for kind, count in others.items())
        )
    if unused := by_name.keys() - used.keys():
        say(f'{_some(len(unused), unused, "images without a file")} are left out')
    content.name_categories(classes)
    return content


def _labelme_shape(shape, place: str) -> tuple[str, str, list | None]:
    """Return the label, the type, and the polygon of a shape; None without an area."""
    if not isinstance(shape, dict) or not is_text(shape.get('label')):
        raise UserError(f'{place} must be a shape with a "label", got {shown(shape)}')
    label, points = shape['label'], shape.get('points')
    kind = shape.get('shape_type') or 'polygon'
    if kind not in ('polygon', 'rectangle', 'circle'):
        return label, shown(kind), None
    pairs = points if isinstance(points, list) else [None]
    if not all(
        isinstance(p, list) and len(p) == 2 and NUMBERS.issuperset(map(type, p))
        for p in pairs
    ):
        raise UserError(
            f'{place}: "points" must be pairs of numbers, got {shown(points)}'
        )
    needed = 3 if kind == 'polygon' else 2
    if len(pairs) < needed or (kind == 'circle' and len(pairs) > 2):
        raise UserError(f'{place}: a {kind} needs {needed} points, got {shown(points)}')
    if kind == 'circle':
        (x, y), edge = pairs
        radius = math.dist((x, y), edge) if max(map(abs, [x, y, *edge])) < 1e9 else 1e9
        angles = [2 * math.pi * i / CIRCLE for i in range(CIRCLE)]
        pairs = [
            (x + radius * math.cos(angle), y + radius * math.sin(angle))
            for angle in angles
        ]
    if kind == 'rectangle':
        xs, ys = zip(*pairs, strict=True)
        x1, y1, x2, y2 = min(xs), min(ys), max(xs), max(ys)
        pairs = [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]
    return label, kind, [value for pair in pairs for value in pair]


def _extend(entry: dict, kind: str, polygon: list[float]):
    """Add a polygon to an object; an object of one rectangle is a box alone."""
    if kind == 'rectangle' and len(entry) == 2:
        x1, y1, _, _, x2, y2 = polygon[:6]
        entry['bbox'] = [x1, y1, x2 - x1, y2 - y1]
        return
    if 'bbox' in entry:
        entry['segmentation'] = [_rectangle(entry.pop('bbox'))]
    entry.setdefault('segmentation', []).append(polygon)


def _rectangle(box: list[float]) -> list[float]:
    x, y, w, h = box
    return [x, y, x + w, y, x + w, y + h, x, y + h]


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
        outline = entry.get('segmentation', [_rectangle(box)]) if masks else None
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
