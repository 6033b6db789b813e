"""Land cover of the Earth as a classification data set, `data/landcover_patches`.

From the maps and the tiles of landcover.py: every patch of 32x32 pixels, on a grid of
16, at least 70% of which one class covers. It lies within one tile, so the patches of
the two splits never overlap, while those in a tile do by half. Rare classes are left
out, and of frequent ones (half of all patches are water) an even selection is kept.
The layout is ImageNet's: `{train,val}/<class>/*.png`.

`--baseline` fits a random forest on the means and deviations of a patch's colors: what
a network has to beat.

Cite: Friedl and Sulla-Menashe, MCD12C1 v006 (2015),
https://doi.org/10.5067/MODIS/MCD12C1.006
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from tqdm import tqdm

from mmattn.cli.terminal import run_main

from .landcover import (
    BASEMAP,
    CLASSES,
    MCD12C1,
    TILE,
    crop,
    fit_labels,
    read_maps,
    tiles,
)
from .package_data import main_of, write_image
from .pixel_forest import fitted

PATCH, STRIDE = 32, 16
MIN_COVER = 0.7
SPLITS = {'training': 'train', 'validation': 'val'}
# A class with fewer patches is left out. A class with more keeps `MOST`.
FEWEST = {'train': 100, 'val': 40}
MOST = {'train': 500, 'val': 250}


def patches(tile: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield (class id, y, x) of the patches of a label tile that have one class."""
    for y in range(0, TILE - PATCH + 1, STRIDE):
        for x in range(0, TILE - PATCH + 1, STRIDE):
            pixels = np.bincount(tile[y : y + PATCH, x : x + PATCH].ravel())
            label = int(pixels.argmax())
            if pixels[label] >= MIN_COVER * PATCH**2:
                yield label, y, x


def find_patches(labels: np.ndarray) -> dict[str, dict[int, list[tuple[int, int]]]]:
    """Return corners (y, x) in a label map (H, W) by split and frequent class id."""
    found = {split: defaultdict(list) for split in FEWEST}
    for split, iy, ix in tiles(labels):
        for label, y, x in patches(crop(labels, iy, ix)):
            found[SPLITS[split]][label].append((iy * TILE + y, ix * TILE + x))
    kept = [
        label
        for label in range(len(CLASSES))
        if all(len(found[split][label]) >= FEWEST[split] for split in FEWEST)
    ]
    return {
        split: {label: thinned(found[split][label], MOST[split]) for label in kept}
        for split in FEWEST
    }


def thinned(items: list, most: int) -> list:
    """Return at most `most` of the items, evenly spaced."""
    chosen = np.linspace(0, len(items) - 1, min(len(items), most)).round().astype(int)
    return [items[index] for index in chosen]


def convert_maps(image: np.ndarray, labels: np.ndarray, folder: Path) -> dict:
    """Write the data set into `folder`, and return the number of patches per split.

    Args:
        image: BGR (H, W, 3).
        labels: class ids of the same extent at any resolution.
        folder: gets `{train,val}/<class>/*.png`, the names with `_` for a space.
    """
    found = find_patches(fit_labels(labels, image))
    counts = {}
    for split, classes in found.items():
        for label, corners in tqdm(classes.items(), split):
            parent = folder / split / list(CLASSES)[label].replace(' ', '_')
            parent.mkdir(parents=True)
            for y, x in corners:
                patch = image[y : y + PATCH, x : x + PATCH]
                write_image(parent / f'patch_y{y:04d}_x{x:04d}.png', patch)
        counts[split] = sum(map(len, classes.values()))
    return counts


def convert(wheels: list[Path], folder: Path) -> dict:
    return convert_maps(*read_maps(wheels), folder)


def load_split(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return means and deviations of each patch's colors (P, 6), and labels (P,)."""
    features, labels = [], []
    for label, parent in enumerate(sorted((folder / split).iterdir())):
        for path in sorted(parent.glob('*.png')):
            features.append(np.concatenate(cv2.meanStdDev(cv2.imread(str(path)))))
            labels.append(label)
    return np.float32(features)[..., 0], np.int32(labels)


def baseline(folder: Path) -> dict[str, float]:
    """Fit a random forest, and return its accuracy in percent."""
    forest = fitted(*load_split(folder, 'train'), trees=200, least=2)
    features, labels = load_split(folder, 'val')
    accuracy = np.mean(forest.predict(features)[1][:, 0] == labels)
    return {'accuracy/top1': 100 * float(accuracy)}


main = main_of(__doc__, 'landcover_patches', (BASEMAP, MCD12C1), convert, baseline)


if __name__ == '__main__':
    run_main(main)
