"""`torch.load(weights_only=True)` with our table of allowed globals."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock

import torch
from torch.serialization import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)

from .allowed_globals import ALLOWED_GLOBALS, as_data
from .bounds import check_bounds

_TABLE = RLock()  # PyTorch keeps one table for the whole process


@contextmanager
def _only_our_globals() -> Iterator[None]:
    """Put our table in the place of the host program's, which is given back."""
    with _TABLE:
        theirs = get_safe_globals()
        clear_safe_globals()
        try:
            with safe_globals(ALLOWED_GLOBALS):
                yield
        finally:
            add_safe_globals(theirs)


def load_data(file, map_location=None):
    """Return the tensors, containers, numbers and text in a `.pth` file.

    Args:
        file: path or binary stream.
        map_location: as for `torch.load`.

    Raises:
        pickle.UnpicklingError: the file asks for more than `allowed_globals` lists.
        ValueError: reading it could take much more time or memory than its size.
        Exception: the file is damaged. Any step may raise.
    """
    opened = nullcontext(file) if isinstance(file, io.BytesIO) else open(file, 'rb')
    with opened as content:
        check_bounds(content)
    with _only_our_globals():
        loaded = torch.load(file, map_location, weights_only=True)
    return as_data(loaded)
