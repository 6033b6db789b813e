"""Digests of files."""

import hashlib
from functools import partial
from pathlib import Path


def file_digest(path: str | Path, algorithm: str = 'sha256') -> str:
    """Return the hex digest of a file, which is read block by block."""
    new = partial(hashlib.new, algorithm, usedforsecurity=False)
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, new).hexdigest()
