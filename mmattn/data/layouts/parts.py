"""Find where the images and the annotations of each split lie.

Splits are folders called `train`, `val` or `test`, or files with such a word in their
name; lists of names, which Pascal VOC has; or what YOLO's YAML file says.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mmattn.errors import UserError

from ..image_files import IMAGE_SUFFIXES, MASK_ENDS, annotation_files, images_in
from ..notes import say
from ..yolo_yaml import read_lines
from .names import (
    ANNOTATIONS,
    IMAGES,
    annotations_of,
    child,
    image_splits,
    only_folder,
    split_folders,
    split_in,
)

LISTED = {'labels': 'SegmentationClass', 'masks': 'SegmentationObject'}
ENDINGS = {'labelme': '.json', 'voc': '.xml', 'yolo': '.txt'}  # for each image
FILES = {  # for each split
    'classes': '.csv',
    'coco': '.json',
    'csv': '.csv',
    'via': '.json',
}
NO_OBJECTS = ('captions', 'person_keypoints', 'stuff', 'panoptic', 'image_info')


@dataclass(frozen=True)
class Part:
    """Some images with their annotations.

    Attributes:
        images: folder of the images.
        annotations: folder or file of the annotations, or the folder of the images.
        names: paths of the images in their folder, without suffix; None for all.
        channels: of TIFF files, which are read as they are; None for RGB.
    """

    images: Path
    annotations: Path
    names: tuple[str, ...] | None = None
    channels: int | None = None

    def __str__(self) -> str:
        if self.images == self.annotations:
            return f'{self.images}'
        return f'{self.images} with {self.annotations}'


def find_parts(
    kind: str, images: Path, annotations: Path | None = None
) -> dict[str, list[Part]]:
    """Return the parts of each split, or all under `all` without a split.

    Splits to validate and test on are left out where nobody has annotated them.

    Args:
        kind: the format.
        images: folder of the images, or of the whole data set; YOLO's YAML file.
        annotations: folder or file of the annotations, None where `images` has them.

    Raises:
        ValueError: there is no such folder, or several files are of one split.
    """
    parts = _all_parts(kind, images, annotations)
    bare = [
        (name, part)
        for name in ('val', 'test')
        for part in parts.get(name, ())
        if not _is_annotated(kind, part)
    ]
    for name, part in bare:
        say(f'{name}: {part.images} has no annotations, and is left out')
        parts[name].remove(part)
    return {name: found for name, found in parts.items() if found}


def _is_annotated(kind: str, part: Part) -> bool:
    if kind in ENDINGS:
        return bool(annotation_files(part.annotations, ENDINGS[kind]))
    return part.images != part.annotations or any(
        path.stem.lower().endswith(MASK_ENDS)
        or path.parent.name.lower() in ANNOTATIONS[kind]
        for path in images_in(part.images)
    )


def _all_parts(
    kind: str, images: Path, annotations: Path | None
) -> dict[str, list[Part]]:
    if annotations is None and images.is_dir():
        images = inner_folder(images)
    if kind == 'yolo' and annotations is None:
        from .yolo import find_lists, find_yaml, find_yolo

        file = find_yaml(images)
        found = find_yolo(file) if file is not None else find_lists(images)
        if found:
            return found
    if not images.is_dir():
        raise UserError(f'{images} is no folder')
    if kind in FILES:
        return _by_files(images, annotations, FILES[kind])
    if annotations is None:
        listed = _listed(kind, images)
        return listed or _by_folders(kind, images)
    if not annotations.is_dir():
        raise UserError(f'{annotations} is no folder')
    return _pairs(images, annotations)


def beside(kind: str, images: Path) -> Part:
    """Return the part of a folder of images whose annotations are not named.

    They are in a folder inside it, in one beside it such as `trainannot`, or among the
    images.
    """
    inner = child(images, IMAGES) or images
    found = child(images, ANNOTATIONS[kind])
    if found is None and inner == images:
        found = child(images.parent, annotations_of(kind, images.name))
    if found is None and images.name.lower() in IMAGES:
        found = child(images.parent, ANNOTATIONS[kind])
    return Part(inner, found or inner)


def inner_folder(folder: Path) -> Path:
    """Return the folder that an archive has put around everything, if it has."""
    inner = only_folder(folder)
    if inner is None or inner.name.lower() in IMAGES:
        return inner or folder
    return inner_folder(inner)


def _pairs(images: Path, annotations: Path) -> dict[str, list[Part]]:
    """Return a part for each split that both folders have, or one for all."""
    annotated = split_folders(annotations)
    return {
        name: [Part(folder, annotated[name])]
        for name, folder in split_folders(images).items()
        if name in annotated
    } or {'all': [Part(images, annotations)]}


def _by_folders(kind: str, root: Path) -> dict[str, list[Part]]:
    if splits := image_splits(root):
        return {name: [beside(kind, folder)] for name, folder in splits.items()}
    images, annotations = child(root, IMAGES), child(root, ANNOTATIONS[kind])
    if images is None:
        return {'all': [Part(root, annotations or root)]}
    return _pairs(images, annotations or images)


def _listed(kind: str, root: Path) -> dict[str, list[Part]]:
    """Return the parts of Pascal VOC's `ImageSets`, empty without any."""
    sets = root / 'ImageSets' / ('Segmentation' if kind in LISTED else 'Main')
    annotations = root / LISTED.get(kind, 'Annotations')
    if kind not in ('voc', *LISTED) or not (sets.is_dir() and annotations.is_dir()):
        return {}
    lists = {path.stem.lower(): path for path in sorted(sets.glob('*.txt'))}
    if 'train' not in lists and 'trainval' in lists:
        lists['train'] = lists['trainval']
    parts = {}
    for name in ('train', 'val', 'test'):
        if name in lists:
            lines = read_lines(lists[name])
            names = tuple(_stem(line.split()[0]) for line in lines if line.split())
            parts[name] = [Part(root / 'JPEGImages', annotations, names)]
    return parts if parts.get('train') else {}


def _stem(name: str) -> str:
    """Return a name without the suffix of an image, which some lists have."""
    path = PurePosixPath(name)
    return str(path.with_suffix('')) if path.suffix.lower() in IMAGE_SUFFIXES else name


def _by_files(
    images: Path, annotations: Path | None, suffix: str
) -> dict[str, list[Part]]:
    """Return the parts of files that annotate many images each."""
    if annotations is not None and not annotations.is_dir():
        return {'all': [Part(images, annotations)]}
    folders = {} if annotations else split_folders(images)
    inside = {name: _files(folder, suffix) for name, folder in folders.items()}
    if inside.get('train'):
        return {
            name: [Part(folders[name], _only(files, name))]
            for name, files in inside.items()
            if files
        }
    inside = child(images, ('annotations',))
    home = annotations or (inner_folder(inside) if inside else images)
    files = _files(home, suffix)
    if not files and annotations is None:  # the folder may be of another format
        files = _files(images, suffix)
    if not files:
        raise UserError(f'{home} has no {suffix} file of annotations')
    by_split = {}
    for file in files:
        by_split.setdefault(split_in(file.stem) or 'all', []).append(file)
    if 'train' not in by_split:
        by_split = {'all': files}
    return {
        name: [Part(_images_of(images, name, found), found)]
        for name in by_split
        if name != 'all' or len(by_split) == 1
        for found in [_only(by_split[name], name)]
    }


def _files(folder: Path, suffix: str) -> list[Path]:
    files = sorted(folder.glob(f'[!.]*{suffix}'))
    objects = [file for file in files if not file.name.startswith(NO_OBJECTS)]
    return objects or files


def _only(files: list[Path], split: str) -> Path:
    if len(files) > 1:
        what = 'annotations' if split == 'all' else f'the split {split}'
        raise UserError(
            f'{len(files)} files may have {what}: {", ".join(map(str, files))}; name '
            'one, and others with --val-annotations and --test-annotations'
        )
    return files[0]


def _images_of(root: Path, split: str, file: Path) -> Path:
    """Return the folder of the images of a file, by its split if there is one."""
    inner = child(root, IMAGES)
    for folder in (inner, root):
        if folder is not None and split in (found := image_splits(folder)):
            return found[split]
    return inner or root
