"""A random forest on single pixels: what a segmentation network has to beat.

It sees the color of a pixel, and mean and deviation of the colors around it. Data sets
have the layout of ADE20K, `{images,annotations}/{training,validation}`, and no void
label. The forest is OpenCV's, with a fixed seed.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np
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


def confusion_matrix(
    pairs: Iterable[tuple[np.ndarray, np.ndarray]], classes: int
) -> np.ndarray:
    """Count pixels of (truth, prediction) pairs of label maps, (classes, classes)."""
    confusion = np.zeros((classes, classes), dtype=np.int64)
    for truth, predicted in pairs:
        cells = truth.ravel().astype(int) * classes + predicted.ravel().astype(int)
        confusion += np.bincount(cells, minlength=classes**2).reshape(classes, classes)
    return confusion


def scores(confusion: np.ndarray) -> dict:
    """Return pixel accuracy and IoU in percent of a matrix (truth, prediction).

    As in mmseg's IoUMetric, a class that occurs in neither is left out of the mean.
    """
    hits = np.diag(confusion).astype(float)
    union = confusion.sum(0) + confusion.sum(1) - hits
    iou = np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0)
    return {
        'aAcc': 100 * hits.sum() / confusion.sum(),
        'mIoU': 100 * np.nanmean(iou),
        'IoU': 100 * iou,
    }


def baseline(
    folder: Path,
    classes: int,
    *,
    pixels: int = 700,
    trees: int = 50,
    depth: int = 20,
) -> dict:
    """Fit a random forest on `pixels` of each training tile.

    The forest sees neither position nor shape.

    Args:
        folder: the data set.
        classes: number of classes.
        pixels: number of random pixels of a tile that the forest is fitted on.
        trees: number of trees.
        depth: largest depth of a tree.

    Returns:
        Validation `scores`.
    """
    cv2.setRNGSeed(0)
    rng = np.random.default_rng(0)

    features, targets = [], []
    for _, image, labels in load_split(folder, 'training'):
        chosen = rng.choice(labels.size, pixels, replace=False)
        features.append(pixel_features(image)[chosen])
        targets.append(labels.reshape(-1)[chosen].astype(np.int32))
    forest = cv2.ml.RTrees.create()
    forest.setMaxDepth(depth)
    forest.setMinSampleCount(5)
    forest.setTermCriteria((cv2.TERM_CRITERIA_MAX_ITER, trees, 0))
    forest.train(np.concatenate(features), cv2.ml.ROW_SAMPLE, np.concatenate(targets))
    pairs = (
        (labels, forest.predict(pixel_features(image))[1])
        for _, image, labels in tqdm(list(load_split(folder, 'validation')))
    )
    return scores(confusion_matrix(pairs, classes))


def report(result: dict, classes: Iterable[str], command: str, out: Path) -> None:
    """Print the scores of a baseline, and write a summary of them to the file `out`."""
    for name, iou in zip(classes, result['IoU'], strict=True):
        print(f'{name:28} IoU {iou:6.2f}')
    metrics = {name: round(result[name], 2) for name in ('mIoU', 'aAcc')}
    print(f'{command}: ' + ', '.join(f'{k} {v}' for k, v in metrics.items()))
    summary = json.dumps({'config': command, 'metrics': metrics}, indent=2)
    out.write_text(summary + '\n')
