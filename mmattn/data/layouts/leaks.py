"""Find images that training and evaluation share."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ...files.digest import file_digest
from .names import SPLITS

EXPORTED = re.compile(r'_(jpe?g|png|bmp|tiff?|webp)\.rf\.[0-9a-f]+$', re.IGNORECASE)
NUMBERED = re.compile(r'(.*?)(?:[-_. ]?frame|[-_. ][ft])?[-_. ]?(\d+)', re.IGNORECASE)
YEAR = re.compile(r'(19|20)\d\d')


def leaks(splits: dict[str, list]) -> str | None:
    """Return a sentence about images of one split that are in another one, or None.

    Files of the same bytes and of the same name are counted, and names that are alike
    apart from the number at their end. Equal names tell nothing where each split
    numbers its images from 0 or 1 on.

    Args:
        splits: items with a `name` and the `path` of their file.
    """
    found, given = [], {name: items for name, items in splits.items() if items}
    named = {} if all(map(_are_numbered, given.values())) else given
    for what, named_splits, key in (
        ('files of the same bytes', given, content_of(given)),
        ('images of the same name', named, _stem),
        ('frames of one video or parts of one picture by their names', given, _video),
    ):
        if pairs := shared(named_splits, key):
            first, other = pairs[0]
            found.append(f'{len(pairs)} {what}, such as {first.path} and {other.path}')
    if not found:
        return None
    *names, last = given
    return (
        'an evaluation on images that training has seen looks too good: '
        f'{", ".join(names)} and {last} share {"; ".join(found)}. --val-images divides '
        'by names'
    )


def shared(splits: dict[str, list], key: Callable) -> list[tuple]:
    """Return an item of an earlier split and the one of a later split, for each."""
    seen, pairs = {}, []
    for split in SPLITS:
        keys = [(key(item), item) for item in splits.get(split, ())]
        pairs += [
            (seen[value], item) for value, item in keys if value and value in seen
        ]
        for value, item in keys:
            seen.setdefault(value, item)
    return pairs


def copies(items: Sequence) -> list[list[int]]:
    """Return the indices of each image with its copies, in the order of the first.

    Copies are files of the same bytes, and what Roboflow makes of one image.

    Args:
        items: with a `name` and the `path` of their file.
    """
    content, first, edges, groups = content_of({'all': items}), {}, [], {}
    for index, item in enumerate(items):
        name = EXPORTED.sub('', str(PurePosixPath(item.name).with_suffix('')))
        edges += [
            (index, first.setdefault(key, index)) for key in (content(item), name)
        ]
    ones, shape = np.ones(len(edges), bool), (len(items), len(items))
    graph = coo_array((ones, tuple(zip(*edges, strict=True))), shape)
    _, labels = connected_components(graph, directed=False)
    for index, label in enumerate(labels):
        groups.setdefault(label, []).append(index)
    return list(groups.values())


def _stem(item) -> str:
    """Return a name without folders, suffix and what Roboflow adds."""
    return EXPORTED.sub('', PurePosixPath(item.name).stem)


def _are_numbered(items: list) -> bool:
    """Return whether names are alike apart from numbers from 0 or 1 on."""
    parts = [re.fullmatch(r'(.*?)(\d+)', _stem(item)) for item in items]
    if not all(parts) or len({part[1] for part in parts}) > 1:
        return False
    numbers = sorted(int(part[2]) for part in parts)
    first = numbers[0]
    return first in (0, 1) and numbers == [*range(first, first + len(numbers))]


def content_of(splits: dict[str, list]) -> Callable:
    """Return a function to the digest of files whose size another one has."""
    sizes = defaultdict(set)
    paths = {Path(item.path) for items in splits.values() for item in items}
    for path in paths:
        sizes[path.stat().st_size].add(path)
    digests = {
        path: file_digest(path)
        for alike in sizes.values()
        if len(alike) > 1
        for path in alike
    }
    # A file that is listed twice is the same, too.
    return lambda item: digests.get(Path(item.path), str(Path(item.path).resolve()))


def _video(item) -> str:
    """Return what is before the number at the end of a name, '' for no frame.

    It must have a number itself, other than a year: cameras number their photos.
    """
    match = NUMBERED.fullmatch(_stem(item))
    beginning = match[1] if match else ''
    is_video = re.search(r'\d', beginning) and not YEAR.fullmatch(beginning)
    return beginning if is_video else ''
