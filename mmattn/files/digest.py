"""Digests of files."""

import hashlib
from pathlib import Path

BLOCK = 1 << 20


def file_digest(path: str | Path, algorithm: str = 'sha256') -> str:
    """Return the hex digest of a file, which is read block by block."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, 'rb') as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
