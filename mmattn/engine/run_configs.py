"""Remember the configs that the runs of this user wrote.

A config is code. The copy in a work dir runs without being named, so it must be the one
that a run wrote. The record is kept outside of the work dir, because a folder from
elsewhere can hold any record. `~/.local/state/mmattn/configs`, or the same below
`XDG_STATE_HOME`, has a file for each config, named by its SHA-256.
"""

import logging
import os
from pathlib import Path

from mmengine.logging import print_log

from ..files import file_digest


def _entry(config: str | Path) -> Path:
    state = os.environ.get('XDG_STATE_HOME') or '~/.local/state'
    folder = Path(state, 'mmattn', 'configs').expanduser()
    return folder / file_digest(config)


def record_config(path: str | Path):
    """Remember the content of a config. Warn if the record cannot be written."""
    try:
        entry = _entry(path)
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.write_text(f'{Path(path).absolute()}\n')
    except (OSError, RuntimeError) as error:  # such as no home
        print_log(
            f'{path} is not recorded as the config of a run ({error}): predictions '
            'will ask for the config',
            logger='current',
            level=logging.WARNING,
        )


def is_recorded(path: str | Path) -> bool:
    """Return whether a run of this user wrote a config with this content."""
    try:
        return _entry(path).is_file()
    except (OSError, RuntimeError):
        return False
