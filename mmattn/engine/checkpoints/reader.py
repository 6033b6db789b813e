"""Reading checkpoints without running what is in them.

A `.pth` file is a pickle, and a pickle is a program. Everything here reads with
`weights_only=True`, which builds tensors, containers and the plain data that
`checkpoint_globals` lists. A file that asks for more is refused, never read another
way by itself; `trusted_checkpoints` is how a user says that it may run code.
`mmattn.compat` makes mmengine read through this module.
"""

import hashlib
import io
import logging
import pickle
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import urlparse

import torch
from mmengine.dist import get_dist_info
from mmengine.logging import print_log

from .unpickler import load_data

# Below it, weights_only=True can be made to run code: CVE-2025-32434 until 2.5, and
# CVE-2026-24747, which corrupts memory, until 2.9.
SAFE_TORCH = (2, 10)
WANTED = re.compile(
    r'GLOBAL (\S+)|unrecognized function (.+)|but got <class \'(\S+)\'>'
)
# A damaged pickle fails in whatever step the damage leads to.
UNREADABLE = (
    pickle.UnpicklingError,
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
_TRUSTED: ContextVar[bool] = ContextVar('trusted_checkpoints', default=False)


class UntrustedCheckpointError(ValueError):
    """A checkpoint would have to run code to be read, and nobody said it may.

    Args:
        source: path or address of the checkpoint.
        wanted: what it would run.
        instead: a sentence that says how to do without, if there is a way.
    """

    def __init__(self, source: str, wanted: str, instead: str = ''):
        super().__init__(
            f'{source} is refused: reading it would run code, namely {wanted!r}, which '
            f'weights have no need of. {instead}If you trust whoever made the file, '
            'pass --trust-checkpoint (trust_checkpoint = True in a config, '
            'mmattn.engine.trusted_checkpoints() in Python).'
        )


@contextmanager
def trusted_checkpoints(trust: bool = True) -> Iterator[None]:
    """Read checkpoints that require code within this context, and run that code.

    Args:
        trust: False changes nothing, also inside another `trusted_checkpoints`.
    """
    token = _TRUSTED.set(trust or _TRUSTED.get())
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def may_run_code() -> bool:
    """Return whether `trusted_checkpoints` is in force."""
    return _TRUSTED.get()


def read_checkpoint(file: str | Path | io.BytesIO, map_location=None, source=None):
    """Return the content of a `.pth` or `.safetensors` file.

    Args:
        file: path, or the content of a `.pth` file.
        map_location: as for `torch.load`; a `.safetensors` file is read on the CPU
            unless it names a device.
        source: what errors call the file; its path by default.

    Returns:
        The object that was saved; of `.safetensors`, the dict of its tensors.

    Raises:
        UntrustedCheckpointError: reading it would run code; a `ValueError`.
        ValueError: the file is truncated or no checkpoint.
        ImportError: a `.safetensors` file where safetensors is not installed.
        RuntimeError: PyTorch is older than 2.10, whose `weights_only` is not safe.
    """
    source = str(file if source is None else source)
    if not isinstance(file, io.BytesIO) and Path(file).suffix == '.safetensors':
        return _read_safetensors(file, map_location, source)
    if torch.__version__ < SAFE_TORCH and not _TRUSTED.get():
        raise RuntimeError(
            f'{source} is not read: PyTorch {torch.__version__} cannot read checkpoints'
            ' without running their code (CVE-2026-24747). Install PyTorch 2.10 or '
            'newer (pip install -U torch), pass --trust-checkpoint, or use a '
            '.safetensors file.'
        )
    try:
        return load_data(file, map_location)
    except UNREADABLE as error:
        if not _TRUSTED.get():
            raise _explained(error, source) from None
    print_log(f'{source} is trusted and may run code', 'current', logging.WARNING)
    if isinstance(file, io.BytesIO):
        file.seek(0)
    return torch.load(file, map_location, weights_only=False)


def _explained(error: Exception, source: str) -> ValueError:
    message = str(error)
    wanted = WANTED.search(message)
    if isinstance(error, pickle.UnpicklingError) and wanted is not None:
        return UntrustedCheckpointError(source, next(filter(None, wanted.groups())))
    if 'TorchScript' in message:
        return UntrustedCheckpointError(source, 'TorchScript')
    reason = message.strip().splitlines()[-1] if message.strip() else 'it ends early'
    return ValueError(
        f'{source} is not a readable checkpoint: it is truncated, or of another format '
        f'({type(error).__name__}: {reason})'
    )


def _read_safetensors(path, map_location, source: str) -> dict[str, torch.Tensor]:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError(
            f'reading {source} needs safetensors: pip install safetensors'
        ) from None
    device = 'cpu'
    if isinstance(map_location, (str, torch.device)):
        device = str(map_location)
    try:
        return safetensors.torch.load_file(path, device=device)
    except safetensors.SafetensorError as error:
        raise ValueError(f'{source} is not a readable checkpoint: {error}') from None


def download_checkpoint(url: str, folder: str | None = None, progress=False) -> Path:
    """Return the local copy of what is at `url`; the first process downloads it once.

    Copies are kept by address, as `<folder>/<hash of the address>/<name>`, since files
    of many models have one name (`model.safetensors`). A name that ends in the first
    digits of a SHA-256 (`name-d4b0c5d6.pth`) is compared with the content, and a
    difference is logged: some published files were converted after they were named.
    `<folder>/<name>`, where `torch.hub` keeps its downloads, is used if its content is
    what such a name says.

    Args:
        url: http or https.
        folder: where it is kept; the checkpoints of `torch.hub` by default.
        progress: show a bar.

    Raises:
        ValueError: the address ends in no name of a file.
    """
    name = Path(urlparse(url).path).name
    if not name:
        raise ValueError(f'a checkpoint needs the address of a file, got {url}')
    folder = Path(folder or Path(torch.hub.get_dir(), 'checkpoints'))
    if (folder / name).is_file() and _is_as_named(folder / name):
        return folder / name
    path = folder / hashlib.sha256(url.encode()).hexdigest()[:16] / name
    rank, world_size = get_dist_info()
    if rank == 0 and not path.exists():
        _download(url, path, progress)
    if world_size > 1:
        torch.distributed.barrier()
        if not path.exists():  # a node with a disk of its own
            _download(url, path, progress=False)
    return path


def _download(url: str, path: Path, progress: bool):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.hub.download_url_to_file(url, str(path), progress=progress)
    if _is_as_named(path) is False:
        print_log(
            f'{url} has another SHA-256 than the digits in its name',
            'current',
            logging.WARNING,
        )


def _is_as_named(path: Path) -> bool | None:
    """Return whether the SHA-256 begins as the name says; None if it says nothing."""
    named = re.search(r'-([a-f0-9]{8,})\.\w+$', path.name)
    if named is None:
        return None
    content = hashlib.sha256()
    with path.open('rb') as file:
        while chunk := file.read(1 << 20):
            content.update(chunk)
    return content.hexdigest().startswith(named[1])
