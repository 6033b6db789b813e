"""The file `last_checkpoint`, in which a run names its last checkpoint."""

import os
from pathlib import Path

from mmattn.errors import UserError

LAST = 'last_checkpoint'
LONGEST_PATH = 4096  # bytes, on Linux


def read_last_checkpoint(work_dir: str | Path) -> str | None:
    """Return the path that `last_checkpoint` of a run has; None without such a file.

    Raises:
        ValueError: the file is longer than a path, no text, or has an address.
    """
    pointer = Path(work_dir, LAST)
    if not pointer.is_file():
        return None
    with pointer.open('rb') as file:
        content = file.read(LONGEST_PATH + 1)
    named = content.decode(errors='replace').strip()
    if len(content) > LONGEST_PATH or not named.isprintable() or '\ufffd' in named:
        raise UserError(
            f'{pointer} must have the path of a checkpoint, got {named[:40]!r}'
        )
    if '://' in named:
        raise UserError(
            f'{pointer} names the address {named}, which is not opened by itself; pass '
            f'it as --resume {named}'
        )
    return named


def check_last_checkpoint(work_dir: str):
    """Raise if `last_checkpoint` of a run names a file that does not exist.

    Without a `last_checkpoint` there is nothing to resume, and a run starts from
    scratch.

    Raises:
        ValueError: the file is missing. The message names it, and a file of the same
            name in the work dir if there is one.
    """
    named = read_last_checkpoint(work_dir)
    if named is None or (named and os.path.exists(named)):
        return
    beside = Path(work_dir, Path(named).name)
    moved = (
        f'; was the folder moved? {beside} exists: --resume {beside}'
        if named and beside.is_file()
        else '; name a checkpoint with --resume, or remove the file to begin again'
    )
    raise UserError(
        f'{Path(work_dir, LAST)} names {named!r}, which does not exist{moved}'
    )
