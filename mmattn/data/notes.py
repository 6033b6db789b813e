"""Notes about data, on the error output."""

import sys
from collections.abc import Iterable

from .coco_json import shown


def say(text: str):
    """Print a note about the annotations."""
    print(f'note: {text}', file=sys.stderr)


def some(count: int, names: Iterable[str], what: str) -> str:
    """Return a count of things in words, with the first of their names."""
    return f'{count} {what}, such as {shown(min(names))}'
