"""Published files by the names of `mmattn/weights.yml`: `mmattn://pvt_v2_b2`."""

from difflib import get_close_matches
from functools import cache
from pathlib import Path

import yaml

import mmattn
from mmattn.errors import UserError

SCHEME = 'mmattn://'


@cache
def published_files() -> dict[str, dict]:
    """Return the entries of `mmattn/weights.yml` by name; its head says what is in one.

    What an entry lacks is unknown.
    """
    return yaml.safe_load(Path(mmattn.__file__).with_name('weights.yml').read_text())


def find_published(name: str) -> dict:
    """Return the entry of a file, by its name with or without `mmattn://`.

    Raises:
        ValueError: no file has this name, or it has no address.
    """
    key = name.removeprefix(SCHEME)
    if key not in published_files():
        close = get_close_matches(key, published_files(), n=3)
        hint = f'did you mean one of {close}? ' if close else ''
        raise UserError(
            f'there are no weights {key!r}: {hint}docs/weights.md lists the names'
        )
    entry = published_files()[key]
    if 'url' not in entry:
        raise UserError(
            f'{key} has no address to download it from: its authors link to it at '
            f'{entry["page"]}. Download it and name the file'
        )
    return entry
