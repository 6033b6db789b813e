"""Divide images into training, validation and test."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmattn.errors import UserError

from .leaks import copies
from .names import SPLITS

SHARE = 0.2  # of the images without a split that validate


@dataclass(frozen=True)
class Wishes:
    """How a user wants images divided.

    Attributes:
        val: share of the images to validate on; None keeps the split of the data, and
            draws a fifth where there is none.
        test: share of the images to test on; None keeps the test images of the data.
        val_images: pattern of the names to validate on instead.
        seed: of the draw.
    """

    val: float | None = None
    test: float | None = None
    val_images: str | None = None
    seed: int = 0


def split(items: dict[str, list], wishes: Wishes) -> tuple[dict[str, list], str]:
    """Divide items, which have a `name`, into `train`, `val` and, if any, `test`.

    Args:
        items: of each split of the data, or of `all`.
        wishes: what the user wants.

    Returns:
        The items of each split, and a sentence about them.

    Raises:
        ValueError: a split would be empty.
    """
    for option, share in (('--val', wishes.val), ('--test', wishes.test)):
        if share is not None and not 0 < share < 1:
            raise UserError(f'{option} must be between 0 and 1, got {share}')
    parts = {name: list(found) for name, found in items.items() if found}
    train = parts.pop('all', []) + parts.pop('train', [])
    rng = np.random.default_rng(wishes.seed)
    how = {name: 'as it comes' for name in parts}
    if wishes.test is not None:
        train += parts.pop('test', [])
        train, parts['test'] = _draw(train, wishes.test, rng)
        how['test'] = '--test, drawn at random'
    if wishes.val_images is not None:
        pool = train + parts.pop('val', [])
        matched = [fnmatch.fnmatch(i.name, wishes.val_images) for i in pool]
        train = [i for i, is_val in zip(pool, matched, strict=True) if not is_val]
        parts['val'] = [i for i, is_val in zip(pool, matched, strict=True) if is_val]
        how['val'] = '--val-images'
    elif wishes.val is not None or 'val' not in parts:
        pool, share = train + parts.pop('val', []), wishes.val or SHARE
        train, parts['val'] = _draw(pool, share, rng)
        how['val'] = f'--val {share}, drawn at random; --val-images chooses by names'
    parts['train'] = train
    _check(parts, wishes)
    text = ', '.join(
        f'{len(parts[name])} for {name}' + (f' ({how[name]})' if name in how else '')
        for name in SPLITS
        if name in parts
    )
    return {name: parts[name] for name in SPLITS if name in parts}, text


def _draw(pool: Sequence, share: float, rng: np.random.Generator) -> tuple[list, list]:
    """Return what is left and what is drawn; copies of an image stay together."""
    groups = copies(pool)
    wanted, chosen = max(1, round(share * len(pool))), set()
    for number in rng.permutation(len(groups)):
        if len(chosen) < wanted:
            chosen.update(groups[number])
    return (
        [item for index, item in enumerate(pool) if index not in chosen],
        [item for index, item in enumerate(pool) if index in chosen],
    )


def _check(parts: dict[str, list], wishes: Wishes):
    total = sum(map(len, parts.values()))
    for name, found in parts.items():
        if not found:
            hint = wishes.val_images or wishes.val or SHARE
            raise UserError(
                f'of {total} images none is left for {name} ({hint!r}); change --val, '
                '--test or --val-images'
            )
