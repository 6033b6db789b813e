"""Tensors that are alive, for tests of what calls keep."""

import contextlib
import gc

from torch import Tensor


@contextlib.contextmanager
def check_nothing_kept():
    """Fail if a tensor on the device 'meta' that was made inside is alive at the end.

    Objects from before are set aside, since looking through them takes a second.
    """
    gc.freeze()
    try:
        yield
        gc.collect()
        made = [x for x in gc.get_objects() if issubclass(type(x), Tensor)]
        assert not [tuple(x.shape) for x in made if x.is_meta]
    finally:
        gc.unfreeze()
