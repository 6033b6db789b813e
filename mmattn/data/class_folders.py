"""Images in a folder for each class: read, and written as mmpretrain reads them."""

import argparse
import shutil
from dataclasses import dataclass
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


def read_folders(args: argparse.Namespace) -> dict[str, list[ClassImage]]:
    """Return the images of each split of the data, with the classes that are wanted.

    Raises:
        ValueError: there are no folders of classes, or splits have different ones.
    """
    root = args.images
    if root.is_dir() and folders_in(inner := inner_folder(root)):
        root = inner
    roots = (split_folders(root) if root.is_dir() else {}) or {'all': root}
    for split in ('val', 'test'):
        if folder := getattr(args, f'{split}_folder'):
            roots[split] = folder
    if len(roots) > 1:
        roots = {name.replace('all', 'train'): path for name, path in roots.items()}
        for name, root in roots.items():
            print(f'{name}: {root}')
    found = {name: _classes_of(root) for name, root in roots.items()}
    names = sorted({name for classes in found.values() for name in classes})
    if len(names) < 2:
        raise UserError(
            f'{args.images} must have a folder of images for each class, got '
            f'{", ".join(names) or "no folder"}'
        )
    new, numbers = merged(names, args.merge)
    target = {name: new[number] for name, number in zip(names, numbers, strict=True)}
    wanted = set(args.classes or new)
    if unknown := wanted - set(new):
        raise UserError(
            f'--classes must name some of the classes {", ".join(new)}, got '
            f'{", ".join(sorted(unknown))}'
        )
    for split, classes in found.items():
        there = {target[name] for name in classes}
        missing = [name for name in new if name in wanted - there]
        if missing and split in ('all', 'train'):
            raise UserError(
                f'{roots[split]} has no class {", ".join(missing)}, which another '
                'split has: --merge makes one class of several, and --classes leaves '
                'classes out'
            )
        if missing:
            say(f'{roots[split]} has no image of {", ".join(missing)}')
    return {
        split: [
            ClassImage(path, target[name], _inside(name, target[name], root, path))
            for name, root in classes.items()
            for path in images_in(root)
            if target[name] in wanted
        ]
        for split, classes in found.items()
    }


def _inside(name: str, target: str, root: Path, path: Path) -> Path:
    """Return the path in the folder of a class, in which merged ones have folders."""
    inside = path.relative_to(root)
    return inside if name == target else Path(name, inside)


def _classes_of(root: Path) -> dict[str, Path]:
    if not root.is_dir():
        raise UserError(f'{root} is no folder')
    return {path.name: path for path in folders_in(root)}


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
