"""Files that are there whole or not at all, whatever ends the process meanwhile."""

import errno
import os
from pathlib import Path

from mmengine.fileio import LocalBackend, get_file_backend, register_backend

SUFFIX = '.mmattn-tmp'
NAME = 'mmattn.atomic'


def write_atomically(path: str | Path, content: bytes):
    """Write a file beside `path`, sync it to disk, and rename it to `path`.

    Until the rename, which either happens or does not, `path` is what it was.

    Raises:
        OSError: it could not be written; names `path`, which is what it was, and
            leaves nothing beside it.
    """
    path = Path(path)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}{SUFFIX}')
    try:
        with temporary.open('wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        message = f'{error.strerror}; what was there before is untouched'
        raise OSError(error.errno, message, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path):
    """Sync the folder, so that renames in it last, where the system supports it."""
    if os.name == 'nt':
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_unfinished(folder: str | Path):
    """Remove the partial files of processes that were killed while writing to `folder`.

    Only one process may write to the folder, as is so for the work dir of a run.
    """
    for path in Path(folder).glob(f'.*{SUFFIX}'):
        path.unlink(missing_ok=True)


@register_backend(NAME, force=True)
class AtomicBackend(LocalBackend):
    """mmengine's local files, with `backend_args=dict(backend='mmattn.atomic')`."""

    def put(self, obj: bytes, filepath: str | Path):
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(filepath, obj)


def atomic_backend_args(uri: str, backend_args: dict | None = None) -> dict | None:
    """Return `backend_args` that make mmengine's writing to `uri` atomic.

    Storage other than local files keeps the given ones.
    """
    if type(get_file_backend(uri, backend_args=backend_args)) is LocalBackend:
        return {'backend': NAME}
    return backend_args
