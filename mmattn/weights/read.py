"""Read checkpoints without running code in them.

A `.pth` file is a pickle, and a pickle is a program. Everything here reads with
`weights_only=True`, which builds tensors, containers and the plain data that
`allowed_globals` lists. A file that asks for more is refused, and no other way of
reading is tried. A user allows code with `trusted_checkpoints`. `mmattn.compat` makes
mmengine read through this module.
"""

import hashlib
import io
import logging
import pickle
import re
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import urlparse

import torch
from torch import distributed

from mmattn.errors import UserError, import_optional
from mmattn.files import file_digest

from .download import MissingFileError, UnreachableError, download
from .unpickler import load_data

# weights_only=True is unsafe in older versions: a file can run code until 2.5
# (CVE-2025-32434) and corrupt memory until 2.9 (CVE-2026-24747).
SAFE_TORCH = (2, 10)
WANTED = re.compile(
    r'GLOBAL (\S+)|unrecognized function (.+)|but got <class \'(\S+)\'>'
)
LOGGER = logging.getLogger('mmattn')
QUOTED = 200  # characters of a file, at most, in a message
_TRUSTED: ContextVar[bool] = ContextVar('trusted_checkpoints', default=False)


class UntrustedCheckpointError(UserError):
    """Reading a checkpoint requires running its code, which the user did not allow.

    Args:
        source: path or address of the checkpoint.
        wanted: the code that it would run.
        instead: a sentence that names an alternative, if there is one.
    """

    def __init__(self, source: str, wanted: str, instead: str = ''):
        super().__init__(
            f'{source} is refused: reading it would run code, namely {wanted!r}, which '
            f'weights do not need. {instead}If you trust the author of the file, '
            'pass --trust-checkpoint (trust_checkpoint = True in a config, '
            'mmattn.engine.trusted_checkpoints() in Python).'
        )


@contextmanager
def allowing(flag: ContextVar[bool], allow: bool) -> Iterator[None]:
    """Set a flag within this context if `allow`; False leaves the flag as it is."""
    token = flag.set(allow or flag.get())
    try:
        yield
    finally:
        flag.reset(token)


def trusted_checkpoints(trust: bool = True) -> AbstractContextManager[None]:
    """Read checkpoints that require code within this context, and run that code.

    Args:
        trust: False changes nothing, also inside another `trusted_checkpoints`.
    """
    return allowing(_TRUSTED, trust)


def may_run_code() -> bool:
    """Return whether the user trusts checkpoints, by `trusted_checkpoints`."""
    return _TRUSTED.get()


def read_checkpoint(file: str | Path | io.BytesIO, map_location=None, source=None):
    """Return the content of a `.pth` or `.safetensors` file.

    Args:
        file: path, or the content of a `.pth` file.
        map_location: as for `torch.load`; 'meta' reads names and shapes alone. A
            `.safetensors` file is mapped on the CPU unless another device is named.
        source: name of the file in errors; it defaults to its path.

    Returns:
        The object that was saved, or the dict of tensors of a `.safetensors` file.

    Raises:
        UntrustedCheckpointError: reading it would run code; a `ValueError`.
        ValueError: the file is truncated or no checkpoint.
        ImportError: a `.safetensors` file where safetensors is not installed.
        UserError: PyTorch is older than 2.10, whose `weights_only` is not safe.
    """
    source = str(file if source is None else source)
    if not isinstance(file, io.BytesIO) and Path(file).suffix == '.safetensors':
        return _read_safetensors(file, map_location, source)
    if torch.__version__ < SAFE_TORCH and not _TRUSTED.get():
        raise UserError(
            f'{source} is refused: PyTorch {torch.__version__} cannot read checkpoints'
            ' without running their code (CVE-2026-24747). Install PyTorch 2.10 or '
            'newer (pip install -U torch), pass --trust-checkpoint, or use a '
            '.safetensors file.'
        )
    try:
        return load_data(file, map_location)
    except Exception as error:  # a damaged file can fail in any step
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if not _TRUSTED.get():
            raise _explained(error, source) from None
    LOGGER.warning('%s is trusted and may run code', source)
    if isinstance(file, io.BytesIO):
        file.seek(0)
    return torch.load(file, map_location, weights_only=False)


def _explained(error: Exception, source: str) -> ValueError:
    message = str(error)
    wanted = WANTED.search(message)
    if isinstance(error, pickle.UnpicklingError) and wanted is not None:
        name = next(filter(None, wanted.groups()))
        return UntrustedCheckpointError(source, name[:QUOTED])
    if 'TorchScript' in message:
        return UntrustedCheckpointError(source, 'TorchScript')
    reason = message.strip().splitlines()[-1] if message.strip() else 'it ends early'
    reason = reason if reason.isprintable() else ascii(reason)
    return UserError(
        f'{source} is not a readable checkpoint: it is truncated or has another format '
        f'({type(error).__name__}: {reason[:QUOTED]})'
    )


def _read_safetensors(path, map_location, source: str) -> dict[str, torch.Tensor]:
    message = f'reading {source} needs safetensors: pip install safetensors'
    safetensors = import_optional(message, 'safetensors.torch', 'safetensors')
    device = 'cpu'
    if isinstance(map_location, (str, torch.device)) and str(map_location) != 'meta':
        device = str(map_location)
    try:
        return safetensors.torch.load_file(path, device=device)
    except safetensors.SafetensorError as error:
        reason = ascii(' '.join(str(error).split()))[1:QUOTED]
        raise UserError(f'{source} is not a readable checkpoint: {reason}') from None


def download_checkpoint(
    url: str,
    folder: str | None = None,
    progress: bool | None = None,
    sha256: str = '',
) -> Path:
    """Return the local copy of the file at `url`; the first process downloads it.

    A copy is kept as `<folder>/<hash of the address>/<name>`, because many models use
    the same file name (`model.safetensors`). If the name ends in the first digits of a
    SHA-256 (`name-d4b0c5d6.pth`), the content must have them. A file
    `<folder>/<name>`, where `torch.hub` keeps its downloads, is used if its content
    has such digits.

    Args:
        url: http or https.
        folder: folder of the copy; it defaults to the checkpoints of `torch.hub`.
        progress: show a bar; None shows it in a terminal.
        sha256: of the file, or its first digits; '' takes those in its name.

    Raises:
        UserError: the address does not end in the name of a file, or the content is
            another one or no checkpoint. The latter is removed.
        FileNotFoundError: there is no copy, and nothing at the address.
        ConnectionError: there is no copy, and the address is out of reach. Both
            messages have the place of the copy.
    """
    path = copy_of(url, folder)

    def get(progress):
        try:
            digest = sha256 or _digits(path)
            download(
                url, path, digest, fault=_fault, progress=progress, attempts=3, wait=0.5
            )
        except (UnreachableError, MissingFileError) as error:
            raise type(error)(f'{error} Put the file at {path}') from error

    several = distributed.is_available() and distributed.is_initialized()
    if not several or distributed.get_rank() == 0:
        get(progress)
    if several:
        distributed.barrier()
        if not path.exists():  # a node with a disk of its own
            get(progress=False)
    return path


def copy_of(url: str, folder: str | None = None) -> Path:
    """Return where `download_checkpoint` has its copy, or would have it.

    Raises:
        ValueError: the address does not end in the name of a file.
    """
    name = Path(urlparse(url).path).name
    if not name:
        raise UserError(f'a checkpoint needs the address of a file, got {url}')
    folder = Path(folder or Path(torch.hub.get_dir(), 'checkpoints'))
    digits, shared = _digits(folder / name), folder / name
    if digits and shared.is_file() and file_digest(shared).startswith(digits):
        return shared
    return folder / hashlib.sha256(url.encode()).hexdigest()[:16] / name


def _digits(path: Path) -> str:
    """Return the first digits of a SHA-256 that a file's name has."""
    named = re.search(r'-([a-f0-9]{8,64})\.\w+$', path.name)
    return '' if named is None else named[1]


def _fault(path: Path) -> str:
    """Return why a file is certainly no checkpoint, or cut off; otherwise ''."""
    with path.open('rb') as file:
        start = file.read(8)
    is_zip = start.startswith(b'PK\x03\x04')
    if path.name.partition('.safetensors')[1]:
        fine = int.from_bytes(start, 'little') + 8 <= path.stat().st_size
    else:
        fine = zipfile.is_zipfile(path) if is_zip else start.startswith(b'\x80')
    return '' if fine else 'is no checkpoint, or cut off'
