"""Write images and files, and convert them with mmattn data convert."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from mmattn.cli import data_convert

SIZE = 64, 48  # width and height
MASK = 40, 60  # height and width


def draw(objects: list[tuple[int, int, int, int, int]]) -> np.ndarray:
    """Return a mask with a rectangle (y, x, height, width, number) for each object."""
    mask = np.zeros(MASK, np.uint8)
    for y, x, height, width, number in objects:
        mask[y : y + height, x : x + width] = number
    return mask


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
    options = '--arch', 'ivit_nano', '--out', 'data/set', '--no-estimate', '--force'
    data_convert.main([*options, *args])
    files = sorted(Path('data/set/annotations').glob('*.json'))
    return {f.stem.removeprefix('instances_'): json.loads(f.read_text()) for f in files}


def convert(*args: str) -> dict[str, list[str]]:
    """Return the images of each split that is written."""
    documents = run(*args)
    for name, document in documents.items():
        assert len(document['annotations']) == len(document['images'])
        assert all(
            Path('data/set', name, i['file_name']).is_file() for i in document['images']
        )
    return {
        name: sorted(image['file_name'] for image in document['images'])
        for name, document in documents.items()
    }


def coco_json(images: str, suffix='.jpg') -> str:
    """Return a document with an object in each image."""
    names = [f'{name}{suffix}' for name in images.split()]
    return json.dumps(
        dict(
            images=[
                dict(id=i, file_name=name, width=SIZE[0], height=SIZE[1])
                for i, name in enumerate(names)
            ],
            annotations=[
                dict(id=i, image_id=i, category_id=1, bbox=[9, 9, 20, 20], area=400)
                for i, _ in enumerate(names)
            ],
            categories=[dict(id=1, name='tree', supercategory='none')],
        )
    )
