"""Read the YAML file of a YOLO data set."""

import math
from pathlib import Path

import yaml

from mmattn.errors import UserError

from .coco_json import is_text, shown

LIMIT = 2**17  # letters, which take about 2 s
DEPTH = 20
STARTS = (
    yaml.BlockMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.FlowSequenceStartToken,
)
ENDS = yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file.

    Raises:
        ValueError: it is no text.
    """
    try:
        return path.read_text(encoding='utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f'{path} is no text file: {error}') from error


def read_yaml(path: Path) -> dict:
    """Return the content of a YAML file.

    Raises:
        ValueError: it is none, or no map.
    """
    text = '\n'.join(read_lines(path))
    try:
        if len(text) > LIMIT:
            raise UserError(f'it has more than {LIMIT} letters')
        _check_yaml(text)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        reason = ' '.join(str(error).split())
        raise UserError(f'{path} cannot be read as YAML: {reason}') from error
    if not isinstance(content, dict):
        raise UserError(
            f'{path} must have "names", a list or a map from numbers to names, got '
            f'{shown(content)}'
        )
    return content


def yolo_names(path: Path) -> tuple[dict[int, str], int]:
    """Return the names of classes, and the number of values of a pose.

    Args:
        path: YAML file, or a text file with a name in each line.

    Raises:
        ValueError: the file has no names.
    """
    if path.suffix not in ('.yaml', '.yml'):
        names = [line.strip() for line in read_lines(path) if line.strip()]
        content = dict(names=names)
    else:
        content = read_yaml(path)
    names = content.get('names')
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
        depth += isinstance(token, STARTS)
        depth -= isinstance(token, ENDS)
        if depth > DEPTH:
            raise UserError(f'it has more than {DEPTH} lists inside each other')
