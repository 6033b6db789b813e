"""Published files by the names of `mmattn/weights/names.yml`: `mmattn://pvt_v2_b2`.

It requires neither torch nor mmengine; `mmattn.weights.resolve` downloads.
"""

from difflib import get_close_matches
from functools import cache
from pathlib import Path

import yaml

from mmattn.errors import UserError

SCHEME = 'mmattn://'


@cache
def published_files() -> dict[str, dict]:
    """Return the entries of `names.yml` by name; its head says what is in one.

    What an entry lacks is unknown.
    """
    return yaml.safe_load(Path(__file__).with_name('names.yml').read_text())


def find_published(name: str) -> dict:
    """Return the entry of a file, by its name with or without `mmattn://`.

    Raises:
        ValueError: no file has this name.
    """
    key = name.removeprefix(SCHEME)
    if key not in published_files():
        close = get_close_matches(key, published_files(), n=3)
        hint = f'did you mean one of {close}? ' if close else ''
        raise UserError(
            f'there are no weights {key!r}: {hint}`mmattn weights list` lists the names'
        )
    return published_files()[key]


def config_of(entry: dict) -> str | None:
    """Return the config of the whole network in a file; None uses its backbone."""
    return entry.get('config', entry.get('figures'))
