"""Write idx files, the format of MNIST and Fashion-MNIST."""

import numpy as np


def idx(array: np.ndarray) -> bytes:
    """Return the content of a file of unsigned bytes."""
    head = np.array([0x800 + array.ndim, *array.shape], dtype='>i4')
    return head.tobytes() + array.astype(np.uint8).tobytes()
