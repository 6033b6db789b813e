"""A file backend of mmengine whose local files are written whole or not at all."""

from pathlib import Path

from mmengine.fileio import LocalBackend, get_file_backend, register_backend

from ..files.atomic import write_atomically

NAME = 'mmattn.atomic'


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
