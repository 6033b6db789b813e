"""Files that are written whole or not at all, even if the process is killed."""

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

SUFFIX = '.mmattn-tmp'


def write_atomically(path: str | Path, content: bytes | Iterable[bytes]):
    """Write a file beside `path`, sync it to disk, and rename it to `path`.

    The content may come in parts, which are not held together. Until the rename, which
    is atomic, `path` keeps its content.

    Raises:
        OSError: the file cannot be written. The message names `path`, which keeps its
            content; nothing is left beside it.
    """
    path = Path(path)
    new = _beside(path, 'new')
    try:
        with _naming(path):
            _write(new, content)
            os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_together(contents: Mapping[Path, bytes]):
    """Write files of one folder that belong together: all of them, or none.

    A process that is killed meanwhile leaves no old file beside a new one: the last
    file is then missing.

    Raises:
        OSError: a file cannot be written. The message names it. All files keep their
            content; nothing is left beside them.
    """
    paths = list(contents)
    new = {path: _beside(path, 'new') for path in paths}
    old = {path: _beside(path, 'old') for path in paths}
    written = []
    try:
        for path in paths:
            with _naming(path):
                _write(new[path], contents[path])
        for path in filter(Path.is_file, reversed(paths)):
            with _naming(path):
                os.replace(path, old[path])
        for path in paths:
            with _naming(path):
                os.replace(new[path], path)
            written.append(path)
    finally:
        if written != paths:
            for path in written:
                path.unlink()
            for path in paths:
                if old[path].exists():
                    os.replace(old[path], path)
        for path in paths:
            new[path].unlink(missing_ok=True)
            old[path].unlink(missing_ok=True)
    _sync_folder(paths[0].parent)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f'.{path.name}.{os.getpid()}.{kind}{SUFFIX}')


def _write(path: Path, content: bytes | Iterable[bytes]):
    with path.open('wb') as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _naming(path: Path):
    """Raise an OSError as one of writing to `path`."""
    try:
        yield
    except OSError as error:
        message = f'{error.strerror}; the previous content is untouched'
        raise OSError(error.errno, message, str(path)) from error


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
