"""Values of a JSON file: read, shown in errors, and refused."""

import json
import reprlib
from math import isfinite
from pathlib import Path

from mmattn.errors import UserError

SIDE = 10**6  # pixels; the largest side of an image
NUMBERS = {int, float}

_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxlist, _repr.maxstring = 2, 6, 80


def shown(value) -> str:
    """Return the repr of a value from a file, shortened: it may be huge."""
    try:
        return _repr.repr(value)
    except ValueError:  # a number of thousands of digits, of which Python prints none
        return f'a huge {type(value).__name__}'


def more(count: int) -> str:
    return f' (and {count} more annotations)' if count else ''


class Fault(Exception):
    """Raised for an annotation that cannot be meant, with what is wrong with it."""


def read_json(source: str | Path | bytes, name: str | None = None):
    """Return the value of a JSON file, which may begin with a byte order mark.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no JSON.
    """
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{name or source} is no JSON file: {error}') from error


def is_text(value) -> bool:
    """Return whether a value is text that can be printed and name a file."""
    if not isinstance(value, str) or not value or '\0' in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a letter
        return False
    return True


def span(values: list) -> tuple[float, float] | None:
    """Return the least and the largest number, None unless all are finite numbers.

    Numbers that are larger than images are none either.
    """
    if not values or not NUMBERS.issuperset(map(type, values)):
        return None
    low, high = min(values), max(values)
    if -SIDE <= low <= high <= 2 * SIDE and isfinite(sum(values)):
        return low, high
    return None
