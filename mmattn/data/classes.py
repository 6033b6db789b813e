"""Rename, merge and choose the classes of a data set."""

import sys
from collections.abc import Sequence

from mmattn.errors import UserError

from ..files.config_text import check_text
from .notes import say
from .own_data import Picture


def check_classes(classes: Sequence[str]) -> None:
    """Raise ValueError if a name could become code in the config, or is repeated.

    Tell of names that differ in case or spaces alone.
    """
    for name in classes:
        check_text(name, 'a class name')
    if len(set(classes)) < len(classes):
        raise UserError(f'the names of classes must differ, got {", ".join(classes)}')
    alike = {}
    for name in classes:
        alike.setdefault(name.casefold().strip(), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            say(
                f'the classes {" and ".join(map(repr, names))} are alike: if they are '
                f'one, pass --merge "{names[0]}={",".join(names)}"'
            )


def merged(
    classes: Sequence[str], merges: Sequence[str]
) -> tuple[list[str], list[int]]:
    """Return the classes after a merge, and the new number of each old one.

    Args:
        classes: names.
        merges: such as 'tree=Alive,Dead'; the new class has the place of the first.

    Raises:
        ValueError: a merge is written otherwise, or names what is no class.
    """
    new = list(classes)
    for text in merges:
        name, equals, olds = text.partition('=')
        olds = [old.strip() for old in olds.split(',')]
        if not (name and equals and all(olds)):
            raise UserError(f'--merge must be such as tree=Alive,Dead, got {text!r}')
        if missing := [old for old in olds if old not in classes]:
            raise UserError(
                f'--merge {text} names {", ".join(missing)}, but the classes are '
                f'{", ".join(classes)}'
            )
        pairs = zip(classes, new, strict=True)
        new = [name if old in olds else each for old, each in pairs]
    names = list(dict.fromkeys(new))
    return names, [names.index(name) for name in new]


def choose_classes(
    splits: dict[str, list[Picture]],
    classes: Sequence[str],
    wanted: Sequence[str] | None,
    merges: Sequence[str],
) -> list[str]:
    """Merge and choose the classes of objects, in place, and return their names.

    Where all wanted names are classes, the others are left out. Otherwise the wanted
    names are new names of all classes, in their order.

    Raises:
        ValueError: there are more or fewer new names than classes.
    """
    names, numbers = merged(classes, merges)
    if wanted is not None and not set(wanted) <= set(names):
        if len(wanted) != len(names):
            raise UserError(
                f'--classes must name some of the classes {", ".join(names)}, or be '
                f'{len(names)} new names for them, got {len(wanted)} names: '
                f'{", ".join(wanted)}'
            )
        names, wanted = list(wanted), None
    if wanted is not None:
        numbers = [
            wanted.index(names[number]) if names[number] in wanted else None
            for number in numbers
        ]
    left_out = sum(_renumber(p, numbers) for found in splits.values() for p in found)
    if left_out:
        say(f'{left_out} objects of other classes than --classes are left out')
    return list(wanted or names)


def warn_of_unseen(splits: dict[str, set[str]]) -> None:
    """Print a warning about classes that training has none of.

    Args:
        splits: names of the classes that each split has something of.
    """
    missing = {split: found - splits['train'] for split, found in splits.items()}
    if names := sorted(set().union(*missing.values())):
        print(
            f'warning: train has nothing of {", ".join(names)}, unlike '
            f'{" and ".join(filter(missing.get, missing))}: --merge makes one class of '
            'several, --val-images divides the images otherwise, and --classes, or '
            '--ignore for label maps, leaves classes out',
            file=sys.stderr,
        )


def _renumber(picture: Picture, numbers: Sequence[int | None]) -> int:
    """Give objects new labels, drop those with None, and return their number."""
    kept = [i for i, label in enumerate(picture.labels) if numbers[label] is not None]
    left_out = len(picture.labels) - len(kept)
    picture.crowds = {new for new, old in enumerate(kept) if old in picture.crowds}
    picture.labels = [numbers[picture.labels[i]] for i in kept]
    picture.boxes = [picture.boxes[i] for i in kept]
    picture.masks = [picture.masks[i] for i in kept] if picture.masks else []
    return left_out
