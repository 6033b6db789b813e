"""Keep two trainings out of one work dir."""

import errno
import json
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.logging import print_log

from mmattn.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FILE = '.mmattn-lock'
UNSUPPORTED = errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL


@contextmanager
def locked_work_dir(folder: str | Path) -> Iterator[None]:
    """Hold the work dir of a training. All ranks must call it together.

    Rank 0 locks a file in the folder for all ranks. The system frees the lock when its
    process ends, however it ends. On a network file system this holds between nodes,
    where the server may free the lock of a crashed node a minute or two later. Where
    locks are not supported, the log says that a second run would not be noticed.

    Raises:
        ValueError: another process holds it; on every rank. Nothing is written.
    """
    file, message = None, [None]
    if is_main_process():
        file, message[0] = _lock(Path(folder))
    broadcast_object_list(message)
    if message[0] is not None:
        raise UserError(message[0])
    try:
        yield
    finally:
        if file is not None:
            file.truncate(0)
            file.close()


def _lock(folder: Path) -> tuple:
    """Return the open, locked file; or None and what to tell, if anything."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    # The file is emptied later, so it must not be one of the user's under two names.
    if os.path.lexists(path):
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return None, f'{path} must be a regular file of one name: remove it'
    file = open(path, 'a+', opener=_open_no_link)
    try:
        if fcntl is None:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        # Unlike flock's, these locks are not inherited by the workers of a loader,
        # which outlive a killed run for seconds.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(file)
        file.close()
        if error.errno not in UNSUPPORTED:
            return None, (
                f'{folder} is the work dir of a training that runs, {holder}: wait for '
                'it, stop it, or choose another --work-dir'
            )
        print_log(
            f'{folder} cannot be locked ({error.strerror}): a second run in it would '
            'not be noticed',
            logger='current',
            level=logging.WARNING,
        )
        return None, None
    if holder := _holder(file):
        print_log(
            f'{folder} was left by a run that did not end by itself, {holder}',
            logger='current',
            level=logging.WARNING,
        )
    file.truncate(0)
    now = datetime.now().isoformat(' ', 'seconds')
    json.dump(dict(pid=os.getpid(), host=socket.gethostname(), since=now), file)
    file.flush()
    return file, None


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, 'O_NOFOLLOW', 0), 0o666)


def _holder(file) -> str:
    """Return who wrote the file; nothing if the run has ended by itself."""
    file.seek(0)
    text = file.read(1000)
    try:
        found = json.loads(text)
        return f'process {found["pid"]} on {found["host"]} since {found["since"]}'
    except (KeyError, TypeError, ValueError):
        return text and 'an unknown process'
