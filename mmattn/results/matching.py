"""Match boxes that a detector found to the objects of an image."""

import numpy as np

MATCH = 0.5  # least IoU of a detection and the object that it found


def overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the IoU of boxes (n, 4) and (m, 4), x1, y1, x2, y2, of shape (n, m)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(2)
    areas = [np.clip(b[:, 2:] - b[:, :2], 0, None).prod(1) for b in (first, second)]
    return shared / np.maximum(areas[0][:, None] + areas[1] - shared, 1e-9)


def match(found: np.ndarray, objects: np.ndarray) -> dict[int, int]:
    """Match boxes to the free object of the largest IoU, of any class.

    Args:
        found: shape (n, 4), best first.
        objects: shape (m, 4).

    Returns:
        The index of the object for the index of each box that found one.
    """
    table, pairs = overlaps(found, objects), {}
    if not table.size:
        return pairs
    for i, row in enumerate(table):
        best = int(row.argmax())
        if row[best] >= MATCH:
            pairs[i] = best
            table[:, best] = -1
    return pairs
