"""Metrics of results on labeled images: average precision, mIoU and accuracy."""

import contextlib
import io
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmattn.errors import UserError

from ..data.coco_json import index

IGNORED = 255


def coco_of(content: Mapping) -> COCO:
    """Return the index of a document of COCO, without its prints."""
    return index(dict(info={}) | dict(content), COCO())


def average_precision(
    truth: COCO,
    found: Mapping[int, Sequence[Mapping]],
    categories: Sequence[int],
    with_masks: bool,
) -> dict[str, float]:
    """Return bbox_mAP, and segm_mAP with masks.

    Args:
        truth: annotated objects.
        found: what `Detections.to_coco` returns, by the id of the image. Other images
            do not count.
        categories: ids of the classes.
        with_masks: whether the model predicts masks.
    """
    boxes, masks = [], []
    for entry in chain.from_iterable(found.values()):
        box = {k: v for k, v in entry.items() if k != 'segmentation'}
        boxes.append(box)
        if 'segmentation' in entry:  # with a box, COCO would take its area
            masks.append({k: v for k, v in entry.items() if k != 'bbox'})
    chosen = list(found), list(categories)
    metrics = dict(bbox_mAP=_precision(truth, boxes, 'bbox', *chosen))
    if with_masks:
        metrics['segm_mAP'] = _precision(truth, masks, 'segm', *chosen)
    return metrics


def _precision(truth: COCO, entries: list, kind: str, images: list, categories: list):
    if not entries:
        return 0.0
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(truth, truth.loadRes(entries), kind)
        evaluation.params.imgIds = images
        evaluation.params.catIds = categories
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def confusion(labels: np.ndarray, found: np.ndarray, num_classes: int) -> np.ndarray:
    """Return how many pixels of each label have each prediction.

    Args:
        labels: label map; pixels of the label 255 are ignored.
        found: predicted labels of the same shape.
        num_classes: C.

    Returns:
        Shape (C, C): label, prediction.

    Raises:
        ValueError: a label has no class.
    """
    valid = labels != IGNORED
    if (largest := max(labels[valid].max(initial=0), found.max())) >= num_classes:
        raise UserError(f'labels up to {largest}, and the file {num_classes} classes')
    index = labels[valid].astype(np.int64) * num_classes + found[valid]
    counts = np.bincount(index, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def overlap(counts: np.ndarray) -> dict[str, float]:
    """Return mIoU and aAcc in percent.

    Classes that occur neither in the labels nor in the predictions are left out.

    Args:
        counts: sum of what `confusion` returns.
    """
    hits = counts.diagonal()
    union = counts.sum(0) + counts.sum(1) - hits
    return dict(
        mIoU=100 * float((hits[union > 0] / union[union > 0]).mean()),
        aAcc=100 * float(hits.sum() / counts.sum()),
    )


def accuracy(labels: Sequence[int], found: Sequence[int]) -> dict[str, float]:
    """Return the share of images whose best class is right, in percent."""
    return dict(top1=100 * float(np.mean(np.equal(labels, found))))
