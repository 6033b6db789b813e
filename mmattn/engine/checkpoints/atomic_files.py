"""Files that are written whole or not at all, even if the process is killed."""

import errno
import os
from pathlib import Path

from mmengine.fileio import LocalBackend, get_file_backend, register_backend

SUFFIX = '.mmattn-tmp'
NAME = 'mmattn.atomic'


def write_atomically(path: str | Path, content: bytes):
    """Write a file beside `path`, sync it to disk, and rename it to `path`.

    Until the rename, which is atomic, `path` keeps its content.

    Raises:
        OSError: the file cannot be written. The message names `path`, which keeps its
            content; nothing is left beside it.
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
        message = f'{error.strerror}; the previous content is untouched'
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

    Only one process may write to the folder. This holds for the work dir of a run.
    """
    for path in Path(folder).glob(f'.*{SUFFIX}'):
        path.unlink(missing_ok=True)


@register_backend(NAME, force=True)
class AtomicBackend(LocalBackend):
    """Write mmengine's local files atomically: `dict(backend='mmattn.atomic')`."""

    def put(self, obj: bytes, filepath: str | Path):
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(filepath, obj)


def atomic_backend_args(uri: str, backend_args: dict | None = None) -> dict | None:
    """Return `backend_args` that make mmengine's writing to `uri` atomic.

    Other storage than local files keeps the given `backend_args`.
    """
    if type(get_file_backend(uri, backend_args=backend_args)) is LocalBackend:
        return {'backend': NAME}
    return backend_args
