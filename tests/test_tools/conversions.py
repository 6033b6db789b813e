"""Write images and files, and convert them with mmattn data convert."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from mmattn.data import convert

SIZE = 64, 48  # width and height


def save(*names: str):
    """Write an image of its own for each name."""
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        seed = sum(map(ord, name))
        pixels = np.random.default_rng(seed).integers(0, 256, (*SIZE[::-1], 3))
        Image.fromarray(pixels.astype(np.uint8)).save(name)


def write(text: str, *names: str):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def run(*args: str) -> dict[str, dict]:
    """Convert into data/set, and return the annotations of each split."""
    convert.main(
        ['--arch', 'ivit_nano', *args, '--out', 'data/set', '--no-estimate', '--force']
    )
    files = sorted(Path('data/set/annotations').glob('*.json'))
    return {f.stem.removeprefix('instances_'): json.loads(f.read_text()) for f in files}
