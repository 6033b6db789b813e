"""Interpolation of maps, written out tap by tap: what resized tables must equal."""

from math import floor

import torch


def cubic(distance, a=-0.75):
    """Keys' cubic kernel with PyTorch's slope at distance 1."""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def linear(distance):
    return max(0.0, 1 - abs(distance))


def matrix(old, new, kernel, align_corners=False):
    """Weights (new, old) of old entries in new ones; beyond the ends, the ends count.

    Without `align_corners` the outer edges of the entries stay in place, with it the
    centers of the first and last one.
    """
    weights = torch.zeros(new, old, dtype=torch.float64)
    for i in range(new):
        place = (i + 0.5) * old / new - 0.5
        if align_corners:
            place = i * (old - 1) / max(1, new - 1)
        for tap in range(floor(place) - 1, floor(place) + 3):
            weights[i, min(max(tap, 0), old - 1)] += kernel(place - tap)
    return weights


def resized(x, size, kernel=cubic, align_corners=False):
    """Map (..., H, W) to (..., *size), in float64."""
    rows, columns = (
        matrix(old, new, kernel, align_corners)
        for old, new in zip(x.shape[-2:], size, strict=True)
    )
    return rows @ x.double() @ columns.T
