"""Read YOLO's text files, and the YAML file with the names of their classes."""

import math
from pathlib import Path

import yaml
from tqdm import tqdm

from mmattn.errors import UserError

from ..coco_json import is_text, shown
from ..own_data import image_files, image_size
from .content import Content, say, some

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
            f'{labels}: {some(len(unused), unused, "files without an image")}'
        )
    if empty := files.keys() - texts.keys():
        say(f'{some(len(empty), empty, "images without a file of labels")}: no object')
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
