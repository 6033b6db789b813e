"""A random forest on single pixels: what a segmentation network has to beat.

It sees the color of a pixel, and mean and deviation of the colors around it. Data sets
have the layout of ADE20K, `{images,annotations}/{training,validation}`, and no void
label. The forest is OpenCV's, with a fixed seed.
"""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import torch
from mmseg.evaluation import IoUMetric
from tqdm import tqdm

WINDOWS = 3, 7, 15, 31


def pixel_features(image: np.ndarray) -> np.ndarray:
    """Return each pixel's color, and mean and deviation around it, (H * W, 27)."""
    image = image.astype(np.float32)
    maps = [image]
    for size in WINDOWS:
        mean = cv2.blur(image, (size, size))
        variance = cv2.blur(image**2, (size, size)) - mean**2
        maps += [mean, np.sqrt(np.maximum(variance, 0))]
    return np.concatenate(maps, axis=2).reshape(image.shape[0] * image.shape[1], -1)


def load_split(
    folder: Path, split: str
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield name, image BGR (H, W, 3) and labels (H, W) of each tile of a split."""
    for path in sorted((folder / 'images' / split).iterdir()):
        annotation = folder / 'annotations' / split / f'{path.stem}.png'
        image = cv2.imread(str(path))
        yield path.stem, image, cv2.imread(str(annotation), cv2.IMREAD_UNCHANGED)


def fitted(
    features: np.ndarray, targets: np.ndarray, *, trees: int, least: int
) -> cv2.ml.RTrees:
    """Fit a forest to features (S, C) and class ids (S,), with a fixed seed."""
    cv2.setRNGSeed(0)
    forest = cv2.ml.RTrees.create()
    forest.setMaxDepth(20)
    forest.setMinSampleCount(least)
    forest.setTermCriteria((cv2.TERM_CRITERIA_MAX_ITER, trees, 0))
    forest.train(features, cv2.ml.ROW_SAMPLE, targets)
    return forest


def baseline(folder: Path, *, classes: int, pixels: int = 700) -> dict[str, float]:
    """Fit a random forest on `pixels` of each training tile, and return its scores.

    The forest sees neither position nor shape. As in mmseg's `IoUMetric`, a class that
    occurs nowhere is left out of the mean.
    """
    rng = np.random.default_rng(0)
    features, targets = [], []
    for _, image, labels in load_split(folder, 'training'):
        chosen = rng.choice(labels.size, pixels, replace=False)
        features.append(pixel_features(image)[chosen])
        targets.append(labels.reshape(-1)[chosen].astype(np.int32))
    samples = np.concatenate(features), np.concatenate(targets)
    forest, areas = fitted(*samples, trees=50, least=5), []
    for _, image, labels in tqdm(list(load_split(folder, 'validation'))):
        found = torch.from_numpy(forest.predict(pixel_features(image))[1][:, 0])
        truth = torch.from_numpy(labels.reshape(-1).astype(np.int64))
        areas.append(IoUMetric.intersect_and_union(found.long(), truth, classes, 255))
    scores = IoUMetric.total_area_to_metrics(*map(sum, zip(*areas, strict=True)))
    ious = 100 * np.nanmean(scores['IoU'])
    return {'mIoU': float(ious), 'aAcc': 100 * float(scores['aAcc'])}
