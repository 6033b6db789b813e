"""Scenes of clothes as a semantic segmentation data set, `data/fashion_scenes`.

Each scene has five to eight photographs of Fashion-MNIST (see fashion_mnist.py) on a
gray background: at random places, turned, mirrored, darkened, enlarged up to twice, and
in front of each other. The classes are the background and five kinds of the classes of
Fashion-MNIST, merged as they look alike. A gray level says little about them; outlines
and parts do. Training scenes show its training images, validation scenes its test
images. The layout follows ADE20K without a void label, so data sets take
`reduce_zero_label=False`.

`--baseline` fits a random forest on the gray level of single pixels and their
surroundings: what a network has to beat.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from mmattn.cli.terminal import run_main
from tools.datasets import fashion_mnist

from .package_data import main_of, write_image
from .pixel_forest import baseline

SIZE = 128
SPLITS = {'training': ('train', 4000), 'validation': ('test', 200)}
OBJECTS = 5, 8
GRAY = 20.0, 120.0
SCALE = 1.25, 2.0
ANGLE = 15.0
GAIN = 0.5, 1.0
# Darker pixels at the rim of a photograph are background. Its own is black.
RIM = 12
# Name, color and ids of Fashion-MNIST of each class, in order of id.
CLASSES = {
    'background': ((0, 0, 0), ()),
    'top': ((230, 25, 75), (0, 2, 4, 6)),  # T-shirt, pullover, coat, shirt
    'trousers': ((60, 180, 75), (1,)),
    'dress': ((0, 130, 200), (3,)),
    'shoe': ((255, 225, 25), (5, 7, 9)),  # sandal, sneaker, ankle boot
    'bag': ((145, 30, 180), (8,)),
}


def merge(labels: np.ndarray) -> np.ndarray:
    """Return our class ids of labels of Fashion-MNIST (P,), uint8."""
    merged = np.zeros(fashion_mnist.NUM_CLASSES, np.uint8)
    for index, (_, ids) in enumerate(CLASSES.values()):
        merged[list(ids)] = index
    return merged[labels]


def background(rng: np.random.Generator) -> np.ndarray:
    """Return a smooth gray (SIZE, SIZE), float32, between the levels of the corners."""
    corners = rng.uniform(*GRAY, (2, 2)).astype(np.float32)
    return cv2.resize(corners, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)


def outline(photo: np.ndarray) -> np.ndarray:
    """Return the mask (H, W) of an object on black, with its holes: uint8, 0 or 255."""
    shapes, _ = cv2.findContours(
        np.uint8(photo > RIM), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
    )
    return cv2.drawContours(np.zeros_like(photo), shapes, -1, 255, cv2.FILLED)


def place(photo: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a photograph at a random place of a scene, and its opacity in 0..1.

    Both are float32 (SIZE, SIZE). Gray levels are multiplied by the opacity.
    """
    if rng.random() < 0.5:
        photo = np.ascontiguousarray(photo[:, ::-1])
    center = (np.array(photo.shape[::-1]) - 1) / 2
    matrix = cv2.getRotationMatrix2D(
        center, rng.uniform(-ANGLE, ANGLE), rng.uniform(*SCALE)
    )
    matrix[:, 2] += rng.uniform(0.1 * SIZE, 0.9 * SIZE, 2) - center
    mask = outline(photo)
    opacity = cv2.warpAffine(mask, matrix, (SIZE, SIZE)) / np.float32(255)
    photo = cv2.warpAffine(photo & mask, matrix, (SIZE, SIZE))
    return photo * np.float32(rng.uniform(*GAIN)), opacity


def compose(
    photos: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return a scene, gray (SIZE, SIZE), and its class ids, both uint8.

    Args:
        photos: gray (P, H, W) on black, uint8, from the back to the front.
        labels: class ids (P,).
        rng: decides where and how they stand.
    """
    canvas, classes = background(rng), np.zeros((SIZE, SIZE), np.uint8)
    for photo, label in zip(photos, labels, strict=True):
        placed, opacity = place(photo, rng)
        canvas = placed + (1 - opacity) * canvas
        classes[opacity > 0.5] = label
    canvas += rng.normal(0, 4, canvas.shape)
    return np.clip(np.rint(canvas), 0, 255).astype(np.uint8), classes


def write_scenes(
    photos: np.ndarray, labels: np.ndarray, folder: Path, split: str, count: int
) -> None:
    """Write `count` scenes of a split in ADE20K's layout into `folder`.

    Objects of each class are equally likely.

    Args:
        photos: gray (P, H, W) on black, uint8.
        labels: class ids (P,).
        folder: gets `images/SPLIT/*.png` and `annotations/SPLIT/*.png`.
        split: 'training' or 'validation'. It seeds a scene, with the scene's number.
        count: number of scenes.
    """
    parents = [folder / kind / split for kind in ('images', 'annotations')]
    for parent in parents:
        parent.mkdir(parents=True)
    chances = 1 / np.bincount(labels)[labels]
    chances /= chances.sum()
    for index in tqdm(range(count), split):
        rng = np.random.default_rng((list(SPLITS).index(split), index))
        objects = rng.integers(*OBJECTS, endpoint=True)
        chosen = rng.choice(len(photos), objects, p=chances)
        scene = compose(photos[chosen], labels[chosen], rng)
        for parent, array in zip(parents, scene, strict=True):
            write_image(parent / f'scene_{index:04d}.png', array)


def convert(packages: list[Path], folder: Path) -> dict:
    """Write all scenes, and return their number by split."""
    with tempfile.TemporaryDirectory() as source:
        fashion_mnist.convert(packages, Path(source))
        for split, (origin, count) in SPLITS.items():
            photos, labels = fashion_mnist.load_split(Path(source), origin)
            write_scenes(photos, merge(labels), folder, split, count)
    palette = [color for color, _ in CLASSES.values()]
    metainfo = {'classes': list(CLASSES), 'palette': palette}
    (folder / 'classes.json').write_text(json.dumps(metainfo) + '\n')
    return {split: count for split, (_, count) in SPLITS.items()}


main = main_of(
    __doc__,
    'fashion_scenes',
    (fashion_mnist.PACKAGE,),
    convert,
    partial(baseline, classes=len(CLASSES), pixels=15),
)


if __name__ == '__main__':
    run_main(main)
