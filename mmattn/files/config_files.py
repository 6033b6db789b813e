"""Configs in files."""

import traceback
from pathlib import Path

from mmattn.errors import UserError

LONGEST = 1000  # characters of an error that a config raises


def read_config_file(path: str | Path):
    """Return the config in a file.

    Raises:
        OSError: the file or one that it inherits cannot be read.
        ValueError: the file is no config. The message names the line.
    """
    from mmengine.config import Config

    try:
        return Config.fromfile(path)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  a program may raise anything
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())[:LONGEST]
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).name == Path(path).name
        ]
        if isinstance(error, SyntaxError):
            lines, reason = [error.lineno], f'{type(error).__name__}: {error.msg}'
        where = f', line {lines[-1]},' if lines else ''
        raise UserError(f'{path}{where} is no config: {reason}') from None
