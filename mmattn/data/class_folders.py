"""Images of classes: read from folders, and written as mmpretrain reads them."""

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from mmattn.errors import UserError

from .classes import merged
from .image_files import folders_in, images_in
from .layouts.names import split_folders
from .layouts.parts import inner_folder
from .notes import say


@dataclass(frozen=True)
class ClassImage:
    """An image and its class.

    Attributes:
        path: of the file.
        folder: name of the class.
        inside: path in the folder.
    """

    path: Path
    folder: str
    inside: Path

    @property
    def name(self) -> str:
        """A name of its own, as folders may number their images alike."""
        return f'{self.folder}_{self.inside.as_posix()}'


def class_roots(args: argparse.Namespace) -> dict[str, Path]:
    """Return the folder of each split in which the folders of classes are.

    There is none where a CSV file has the classes.

    Raises:
        ValueError: there are not two folders, and no such file.
    """
    root = args.images
    if args.annotations is not None or not root.is_dir():
        return {}
    if folders_in(inner := inner_folder(root)):
        root = inner
    roots = split_folders(root) or {'all': root}
    for split in ('val', 'test'):
        if folder := getattr(args, f'{split}_folder'):
            roots[split] = folder
    if len(roots) > 1:
        roots = {name.replace('all', 'train'): path for name, path in roots.items()}
    names = {path.name for root in roots.values() for path in folders_in(root)}
    if len(names) > 1:
        return roots
    if any(args.images.rglob('*.csv')):
        return {}
    raise UserError(
        f'{args.images} must have a folder of images for each class, or a CSV file of '
        f'the classes, got {", ".join(sorted(names)) or "no folder"}'
    )


def read_folders(roots: dict[str, Path]) -> dict[str, list[ClassImage]]:
    """Return the images of each split; each folder inside its root is a class."""
    if len(roots) > 1:
        for split, root in roots.items():
            print(f'{split}: {root}')
    return {
        split: [
            ClassImage(path, folder.name, path.relative_to(folder))
            for folder in folders_in(root)
            for path in images_in(folder)
        ]
        for split, root in roots.items()
    }


def choose_images(
    splits: dict[str, list[ClassImage]],
    places: dict[str, Path],
    wanted: Sequence[str] | None,
    merges: Sequence[str],
) -> dict[str, list[ClassImage]]:
    """Return the images of the classes that are wanted, after merges.

    Args:
        splits: images of each split.
        places: what names their classes, for errors.
        wanted: the classes to keep; None for all.
        merges: see `merged`.

    Raises:
        ValueError: there are fewer than two classes, or training lacks one.
    """
    names = sorted({image.folder for found in splits.values() for image in found})
    if len(names) < 2:
        raise UserError(
            f'{next(iter(places.values()))} must have images of two classes or more, '
            f'got {", ".join(names) or "none"}'
        )
    new, numbers = merged(names, merges)
    target = {name: new[number] for name, number in zip(names, numbers, strict=True)}
    wanted = set(wanted or new)
    if unknown := wanted - set(new):
        raise UserError(
            f'--classes must name some of the classes {", ".join(new)}, got '
            f'{", ".join(sorted(unknown))}'
        )
    for split, found in splits.items():
        there = {target[image.folder] for image in found}
        missing = [name for name in new if name in wanted - there]
        if missing and split in ('all', 'train'):
            raise UserError(
                f'{places[split]} has no class {", ".join(missing)}, which another '
                'split has: --merge makes one class of several, and --classes leaves '
                'classes out'
            )
        if missing:
            say(f'{places[split]} has no image of {", ".join(missing)}')
    return {
        split: [
            _renamed(image, target[image.folder])
            for image in found
            if target[image.folder] in wanted
        ]
        for split, found in splits.items()
    }


def _renamed(image: ClassImage, folder: str) -> ClassImage:
    """Return an image of another class, in a folder of the old one."""
    if folder == image.folder:
        return image
    return replace(image, folder=folder, inside=Path(image.folder, image.inside))


def write_folders(splits: dict[str, list[ClassImage]], folder: Path) -> dict:
    """Write `SPLIT/CLASS/` of each split, and return the images of each class."""
    counts = {}
    names = sorted({each.folder for found in splits.values() for each in found})
    for split, found in splits.items():
        for name in names:  # a class without images keeps its number
            (folder / split / name).mkdir(parents=True)
        for each in tqdm(found, f'write {split}', disable=None):
            target = folder / split / each.folder / each.inside
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each.path, target)
        folders = [each.folder for each in found]
        counts[split] = {name: folders.count(name) for name in names}
    return counts
