"""Find the splits of YOLO's YAML file, as Ultralytics does."""

import re
from pathlib import Path, PureWindowsPath

from mmattn.errors import UserError

from ..coco_json import shown
from ..image_files import IMAGE_SUFFIXES
from ..notes import say
from ..yolo_yaml import read_lines, read_yaml
from .names import child
from .parts import Part, inner_folder

KEYS = {'train': ('train',), 'val': ('val', 'valid', 'validation'), 'test': ('test',)}

KEY = re.compile(r'^[\ufeff{"\'\s]*(train|names)["\']?\s*:', re.MULTILINE)
NAMES = 'classes.txt', 'obj.names', '_darknet.labels'  # labelImg's, CVAT's, Roboflow's


def find_yaml(root: Path) -> Path | None:
    """Return the YAML file of a data set: the path itself, or the file in the folder.

    A folder may have others, such as the settings of a training.

    Raises:
        ValueError: there is no such path, or there are several files.
    """
    if root.is_file():
        return root
    if not root.is_dir():
        raise UserError(f'{root} is neither a folder nor a YAML file')
    files = [p for p in sorted(root.glob('[!.]*')) if p.suffix in ('.yaml', '.yml')]
    files = [p for p in files if KEY.search(p.read_text('utf-8', 'replace'))]
    if len(files) > 1:
        files = [file for file in files if file.stem in ('data', 'dataset')] or files
    if len(files) > 1:
        names = ', '.join(map(str, files))
        raise UserError(f'{root} has several YAML files, {names}; name one')
    return files[0] if files else None


def find_names(root: Path, parts: dict[str, list[Part]]) -> Path | None:
    """Return the file with the names of the classes, near images and labels.

    The YAML file comes first, as it gives the splits, too.
    """
    if root.is_file():
        return root
    labels = [part.annotations for found in parts.values() for part in found]
    near = [root, inner_folder(root), *labels]
    for folder in dict.fromkeys([*near, *(path.parent for path in near)]):
        if (found := find_yaml(folder)) is not None:
            return found
        for name in NAMES:
            if (folder / name).is_file():
                return folder / name
    return None


def find_lists(root: Path) -> dict[str, list[Part]]:
    """Return the parts of Darknet's `train.txt`, which CVAT writes; or none."""
    lists = {}
    for split, names in KEYS.items():
        files = (root / f'{name}.txt' for name in names)
        if file := next(filter(Path.is_file, files), None):
            lists[split] = file
    first = read_lines(lists['train'])[:1] if 'train' in lists else []
    if not any(Path(line.strip()).suffix.lower() in IMAGE_SUFFIXES for line in first):
        return {}  # it has the objects of an image
    return {split: _parts(file) for split, file in lists.items()}


def find_yolo(file: Path) -> dict[str, list[Part]]:
    """Return the parts of each split that a YAML file names.

    Relative paths are relative to `path`, which is relative to the file. Of a path of
    another machine, the longest end that is here counts.

    Raises:
        ValueError: there is no training split, or an entry is no path.
    """
    content = read_yaml(file)
    given = {
        name: next((content[key] for key in keys if content.get(key)), None)
        for name, keys in KEYS.items()
    }
    parts, missing = {}, []
    for name, value in given.items():
        paths = value if isinstance(value, list) else [] if value is None else [value]
        for path in paths:
            if not isinstance(path, str):
                raise UserError(f'{file}: "{name}" must be paths, got {shown(value)}')
            found = _find(file, content.get('path'), path)
            if found is None:
                missing.append(f'{name}: {path}')
            else:
                parts.setdefault(name, []).extend(_parts(found))
    if 'train' not in parts:
        if given['train'] is not None:
            raise UserError(
                f'{file} names what is not there, {", ".join(missing)}: correct the '
                f'paths, or pass the folder of the data and --yaml {file}'
            )
        raise UserError(
            f'{file} must have "train", a folder of images or a list of them, got the '
            f'keys {shown(list(content))}'
        )
    if missing:
        say(f'{file} names what is not there, and is left out: {", ".join(missing)}')
    for name in ('val', 'test'):
        if parts.get(name) == parts['train']:
            say(f'{file}: {name} is train again, and is left out')
            del parts[name]
    return parts


def _find(file: Path, base, path: str) -> Path | None:
    bases = [file.parent]
    if isinstance(base, str):
        ends = (file.parent / end for end in _ends(base))
        bases = [file.parent / base, Path(base), *ends, file.parent]
    found = (each / end for end in (path, *_ends(path)) for each in bases)
    return next((path for path in found if path.exists()), None)


def _ends(path: str) -> list[Path]:
    """Return the ends of a path, the longest first: /set/images has set/images, images.

    Files come from other folders and machines: CVAT writes `data/` before the paths of
    its lists, Roboflow `../` before folders, and Colab has all of them in `/content/`.
    """
    parts = PureWindowsPath(path).parts  # knows / and \
    return [Path(*parts[start:]) for start in range(len(parts))]


def _parts(path: Path) -> list[Part]:
    """Return the parts of a folder of images, or of a file with a path in each line."""
    if path.is_dir():
        return [Part(path, _labels_of(path))]
    names = {}
    for line in read_lines(path):
        if line.strip():
            image = _listed(path, line.strip())
            folders = (p for p in image.parents if p.name == 'images')
            names.setdefault(next(folders, image.parent), []).append(image)
    return [
        Part(
            root,
            _labels_of(root),
            tuple(image.relative_to(root).with_suffix('').as_posix() for image in each),
        )
        for root, each in names.items()
    ]


def _listed(file: Path, line: str) -> Path:
    ends = (file.parent / end for end in _ends(line))
    places = (file.parent / line, Path(line), *ends)
    found = next((place for place in places if place.is_file()), None)
    if found is None or found.suffix.lower() not in IMAGE_SUFFIXES:
        raise UserError(f'{file} must list images, got {shown(line)}, which is none')
    return found


def _labels_of(images: Path) -> Path:
    """Return the folder of labels: the last `images` of the path is `labels` there."""
    for folder in (images, *images.parents):
        if folder.name.lower() == 'images':
            labels = child(folder.parent, ['labels'])
            labels = labels and labels / images.relative_to(folder)
            return labels if labels and labels.is_dir() else images
    return images
