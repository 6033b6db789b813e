"""Draw masks, and convert images with masks into data/cells."""

import numpy as np

from mmattn.data import convert

SIZE = 40, 60


def draw(objects: list[tuple[int, int, int, int, int]]) -> np.ndarray:
    """Return a mask with a rectangle (y, x, height, width, number) for each object."""
    mask = np.zeros(SIZE, np.uint8)
    for y, x, height, width, number in objects:
        mask[y : y + height, x : x + width] = number
    return mask


def run(*args: str) -> None:
    convert.main(['--arch', 'ivit_nano', *args, '--out', 'data/cells', '--no-estimate'])
