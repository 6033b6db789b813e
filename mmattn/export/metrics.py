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
from .metadata import Metadata

IGNORED = 255


def average_precision(
    truth: COCO, found: Sequence[Mapping], with_masks: bool
) -> dict[str, float]:
    """Return bbox_mAP, and segm_mAP with masks.

    Args:
        found: what `Detections.to_coco` returns, of all images.
    """
    metrics = dict(bbox_mAP=_precision(truth, found, 'bbox'))
    if with_masks:  # with a box, COCO would take its area
        masks = [{k: v for k, v in each.items() if k != 'bbox'} for each in found]
        metrics['segm_mAP'] = _precision(truth, masks, 'segm')
    return metrics


def _precision(truth: COCO, entries: Sequence[Mapping], kind: str) -> float:
    if not entries:
        return 0.0
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(truth, truth.loadRes(entries), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def confusion(labels: np.ndarray, found: np.ndarray, num_classes: int) -> np.ndarray:
    """Return how many pixels of each label have each prediction.

    Args:
        labels: label map; pixels of the label 255 are ignored.
        found: predicted labels of the same shape.

    Returns:
        Shape (C, C) for C classes: label, prediction.

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


class Metrics:
    """Measure results of PyTorch and of a file on annotated images."""

    def __init__(self, metadata: Metadata):
        self.task = metadata.task
        self.with_masks = 'masks' in metadata.outputs
        self.classes = len(metadata.classes or ())
        self.images, self.annotations, self.labels = [], [], []
        self.results = [], []  # of PyTorch, of the file

    def add(self, prediction, found):
        """Add the results of PyTorch and the file for an image, if it is annotated."""
        truth, results = prediction.truth or {}, (prediction.result, found)
        if not self.classes:
            return
        if self.task == 'detection' and prediction.instances is not None:
            key = len(self.images)
            H, W = truth.ori_shape[:2]
            self.images.append(dict(id=key, height=H, width=W))
            for each in prediction.instances:
                self.annotations.append(
                    _annotation(each, key, len(self.annotations) + 1)
                )
            values = [each.to_coco(key) for each in results]
        elif self.task == 'segmentation' and 'gt_sem_seg' in truth:
            labels = truth.gt_sem_seg.data[0].numpy()
            if labels.shape != results[0].labels.shape:
                return
            values = [confusion(labels, each.labels, self.classes) for each in results]
        elif self.task == 'classification' and 'gt_label' in truth:
            if truth.gt_label.numel() != 1:
                return
            self.labels.append(int(truth.gt_label))
            values = [each.label for each in results]
        else:
            return
        for all_values, value in zip(self.results, values, strict=True):
            all_values.append(value)

    def measured(self) -> dict[str, tuple[float, float]]:
        """Return the value of PyTorch and of the file by the name of the metric."""
        if not self.results[0] or (self.task == 'detection' and not self.annotations):
            return {}
        if self.task == 'detection':
            content = dict(
                info={},
                images=self.images,
                annotations=self.annotations,
                categories=[dict(id=i + 1) for i in range(self.classes)],
            )
            truth = index(content, COCO())
            pair = [
                average_precision(truth, list(chain(*each)), self.with_masks)
                for each in self.results
            ]
        elif self.task == 'segmentation':
            counts = [np.sum(each, 0) for each in self.results]
            if not counts[0].any():
                return {}
            pair = [overlap(each) for each in counts]
        else:
            pair = [accuracy(self.labels, each) for each in self.results]
        return {name: (pair[0][name], pair[1][name]) for name in pair[0]}


def _annotation(instance: Mapping, image: int, key: int) -> dict:
    x1, y1, x2, y2 = map(float, instance['bbox'])
    entry = dict(
        id=key,
        image_id=image,
        category_id=int(instance['bbox_label']) + 1,
        bbox=[x1, y1, x2 - x1, y2 - y1],
        area=(x2 - x1) * (y2 - y1),
        iscrowd=int(instance.get('ignore_flag', 0)),
    )
    if instance.get('mask'):
        entry['segmentation'] = instance['mask']
    return entry
