"""Synthetic stand-ins for COCO 2017, ADE20K and ImageNet, in their exact layouts.

    python -m tools.datasets.toy coco --out data/coco
    python -m tools.datasets.toy ade20k --out data/ade
    python -m tools.datasets.toy imagenet --out data/imagenet

The images show drawn shapes, come in different and odd sizes, and are the same each
time. Every config written for the real data set runs on them unchanged, which is what
they are for: to see that a config trains, evaluates and writes its results. No number
measured on them means anything.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from mmattn.cli.terminal import positive, run_main
from mmattn.data.folders import build
from mmattn.weights.layouts.coco_classes import CATEGORY_IDS

from .package_data import write_image

# Some ImageNet synsets and their labels among the 1000, the first and last included.
SYNSETS = {'n01440764': 0, 'n01443537': 1, 'n02123045': 281, 'n15075141': 999}
ADE_CLASSES = 150
# Width and height; one image is smaller than any stride-32 feature.
SIZES = [(160, 120), (97, 131), (128, 96), (23, 17)]
EMPTY = 2


def image_size(index: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return width and height: `SIZES` first, then random ones."""
    if index < len(SIZES):
        return SIZES[index]
    return tuple(int(side) for side in rng.integers(60, 160, 2))


def draw_background(width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a vertical ramp between two dim colors, with noise, in uint8."""
    ramp = np.linspace(*rng.uniform(20, 120, (2, 3)), height)[:, None]
    noise = rng.normal(0, 8, (height, width, 3))
    return np.clip(ramp + noise, 0, 255).astype(np.uint8)


def random_polygon(width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """Return the corners (3..6, 2) of a convex polygon inside the image."""
    radius = rng.uniform(0.15, 0.35) * min(width, height)
    center = rng.uniform(radius, np.array([width, height]) - 1 - radius)
    corners = int(rng.integers(3, 7))
    # Less than half a step of jitter keeps neighbors apart and the area from zero.
    angles = (np.arange(corners) + rng.uniform(0, 0.5, corners)) * 2 * np.pi / corners
    return center + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def paint(canvas: np.ndarray, polygon: np.ndarray, value) -> None:
    cv2.fillPoly(canvas, [np.round(polygon).astype(np.int32)], value)


def coco_categories() -> list[dict]:
    """Return the 80 categories of COCO 2017, without the groups that they are in."""
    from mmdet.datasets import CocoDataset

    names = zip(CATEGORY_IDS, CocoDataset.METAINFO['classes'], strict=True)
    return [{'supercategory': '', 'id': id, 'name': name} for id, name in names]


def polygon_annotation(polygon: np.ndarray, width: int, height: int) -> dict:
    points = np.round(polygon, 2).reshape(-1).tolist()
    rle = coco_mask.merge(coco_mask.frPyObjects([points], height, width))
    area, bbox = float(coco_mask.area(rle)), coco_mask.toBbox(rle).tolist()
    return dict(segmentation=[points], area=area, iscrowd=0, bbox=bbox)


def crowd_annotation(mask: np.ndarray) -> dict:
    """Return a crowd as in COCO: iscrowd 1 and an uncompressed RLE by columns."""
    flat = mask.reshape(-1, order='F')
    changes = np.flatnonzero(np.diff(flat, prepend=0))
    counts = np.diff(changes, prepend=0, append=flat.size).tolist()
    columns, rows = np.flatnonzero(mask.any(0)), np.flatnonzero(mask.any(1))
    x, y = int(columns[0]), int(rows[0])
    return dict(
        segmentation=dict(counts=counts, size=list(mask.shape)),
        area=int(mask.sum()),
        iscrowd=1,
        bbox=[x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1],
    )


def draw_coco(
    index: int, width: int, height: int, rng: np.random.Generator
) -> tuple[np.ndarray, list[dict]]:
    """Return an image of `make_coco` and its annotations, without their ids."""
    image, drawn = draw_background(width, height, rng), []
    for _ in range(0 if index == EMPTY else rng.integers(2, 5)):
        polygon = random_polygon(width, height, rng)
        paint(image, polygon, rng.integers(100, 256, 3).tolist())
        drawn.append(polygon_annotation(polygon, width, height))
    if index == 0:
        dot = np.array([[3.0, 3.0], [6.0, 3.0], [6.0, 6.0], [3.0, 6.0]])
        paint(image, dot, (255, 255, 255))
        drawn.append(polygon_annotation(dot, width, height))
        mask = np.zeros((height, width), dtype=np.uint8)
        for x in range(width // 2, width - 8, 12):
            cv2.circle(mask, (x, height - 10), 5, 1, -1)
        image[mask > 0] = 220
        drawn.append(crowd_annotation(mask))
    return image, drawn


def make_coco(out_dir: Path, num_images: int = 4) -> dict:
    """Write `{train,val}2017/` and `annotations/instances_{train,val}2017.json`.

    Args:
        out_dir: what a config calls `data_root`, `data/coco`.
        num_images: images of each split. The first has a crowd and a tiny object, the
            third no annotation, the fourth is itself tiny.
    """
    counts = {}
    categories = coco_categories()
    (out_dir / 'annotations').mkdir(parents=True, exist_ok=True)
    for offset, split in enumerate(('train2017', 'val2017')):
        rng = np.random.default_rng([0, offset])
        (out_dir / split).mkdir(exist_ok=True)
        images, annotations = [], []
        for index in range(num_images):
            image_id = 1000 * (offset + 1) + 7 * index
            width, height = image_size(index, rng)
            image, drawn = draw_coco(index, width, height, rng)
            name = f'{image_id:012d}.jpg'
            write_image(out_dir / split / name, image)
            entry = dict(license=1, file_name=name, coco_url='', height=height)
            entry |= dict(width=width, date_captured='2017-01-01 00:00:00')
            images.append(entry | dict(flickr_url='', id=image_id))
            for annotation in drawn:
                category = categories[int(rng.integers(len(categories)))]
                ids = dict(image_id=image_id, category_id=category['id'])
                ids['id'] = 10_000_000 * offset + 10_000 + len(annotations)
                annotations.append(annotation | ids)
        content = {
            'info': {'description': 'drawn shapes in the layout of COCO 2017'},
            'licenses': [{'id': 1, 'name': 'none', 'url': ''}],
            'images': images,
            'annotations': annotations,
            'categories': categories,
        }
        path = out_dir / 'annotations' / f'instances_{split}.json'
        path.write_text(json.dumps(content))
        counts[split] = {'images': len(images), 'annotations': len(annotations)}
    return counts


def make_ade20k(out_dir: Path, num_images: int = 4) -> dict:
    """Write `ADEChallengeData2016/{images,annotations}/{training,validation}/`."""
    root = out_dir / 'ADEChallengeData2016'
    splits = {'training': 'ADE_train', 'validation': 'ADE_val'}
    for offset, (split, prefix) in enumerate(splits.items()):
        rng = np.random.default_rng([0, offset])
        for kind in ('images', 'annotations'):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
        for index in range(num_images):
            width, height = image_size(index, rng)
            image = draw_background(width, height, rng)
            # 0 is `other`, which the loss ignores; 1..150 are the classes.
            labels = np.zeros((height, width), dtype=np.uint8)
            labels[: height // 2] = rng.integers(1, ADE_CLASSES + 1)
            for _ in range(rng.integers(3, 7)):
                polygon = random_polygon(width, height, rng)
                label = int(rng.integers(1, ADE_CLASSES + 1))
                paint(labels, polygon, label)
                paint(image, polygon, (label, 255 - label, (label * 37) % 256))
            name = f'{prefix}_{index + 1:08d}'
            write_image(root / 'images' / split / f'{name}.jpg', image)
            write_image(root / 'annotations' / split / f'{name}.png', labels)
    return dict.fromkeys(splits, num_images)


def make_imagenet(out_dir: Path, num_images: int = 4) -> dict:
    """Write `{train,val}/<synset>/*.JPEG` and `meta/{train,val}.txt`.

    mmpretrain's `ImageNet` reads `meta/*.txt` where it exists and takes the labels from
    there; without it, it insists on one folder for each of the 1000 classes.
    """
    (out_dir / 'meta').mkdir(parents=True, exist_ok=True)
    stems = {'train': '{}_{}', 'val': 'ILSVRC2012_val_{1:08d}'}
    for offset, (split, stem) in enumerate(stems.items()):
        rng = np.random.default_rng([0, offset])
        lines = []
        for synset in SYNSETS:
            (out_dir / split / synset).mkdir(parents=True, exist_ok=True)
        for index in range(num_images):
            synset = list(SYNSETS)[index % len(SYNSETS)]
            name = f'{synset}/{stem.format(synset, index + 1)}.JPEG'
            lines.append(f'{name} {SYNSETS[synset]}\n')
            image = draw_background(*image_size(index, rng), rng)
            polygon = random_polygon(image.shape[1], image.shape[0], rng)
            paint(image, polygon, rng.integers(100, 256, 3).tolist())
            write_image(out_dir / split / name, image)
        (out_dir / 'meta' / f'{split}.txt').write_text(''.join(sorted(lines)))
    return dict.fromkeys(stems, num_images)


MAKERS = {'coco': make_coco, 'ade20k': make_ade20k, 'imagenet': make_imagenet}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('layout', choices=MAKERS)
    parser.add_argument('--out', type=Path, required=True)
    parser.add_argument('--num-images', type=positive, default=4, help='of each split')
    parser.add_argument('--force', action='store_true', help='rebuild the data set')
    args = parser.parse_args(argv)
    options = {'images': args.num_images, 'seed': 0, 'layout': args.layout}
    write = partial(MAKERS[args.layout], num_images=args.num_images)
    build(write, args.out, options, force=args.force)


if __name__ == '__main__':
    run_main(main)
