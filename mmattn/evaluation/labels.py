"""Confusion of labels, of images or of pixels, and figures of each class."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from mmengine.evaluator import BaseMetric

from mmattn.errors import UserError
from mmattn.registry import METRICS

IGNORED = 255


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of classes, with the label of those that share theirs.

    ImageNet has two classes named maillot, and two named crane.
    """
    count = Counter(names)
    return [
        f'{name} ({i})' if count[name] > 1 else name for i, name in enumerate(names)
    ]


@METRICS.register_module()
class LabelConfusion(BaseMetric):
    """Count the labels of images, or of pixels, by prediction.

    It logs nothing and adds no metric; `confusion` and `classes` hold the result.

    Attributes:
        confusion: shape (classes, classes): label, prediction.
        classes: figures of each class in percent: IoU and accuracy of a segmentor's,
            precision and recall of a classifier's. NaN where there is nothing to count.
    """

    default_prefix = 'confusion'

    def __init__(self, collect_device: str = 'cpu', prefix: str | None = None):
        super().__init__(collect_device, prefix)
        self.confusion, self.classes = None, {}

    @property
    def class_rows(self) -> dict[str, dict[str, dict[str, float]]]:
        """The figures of each class."""
        return dict(labels=self.classes) if self.classes else {}

    def process(self, data_batch, data_samples):
        count = len(self.dataset_meta['classes'])
        for sample in data_samples:
            of_pixels = 'pred_sem_seg' in sample
            if of_pixels:
                found = sample['pred_sem_seg']['data'].cpu().numpy().ravel()
                labels = sample['gt_sem_seg']['data'].cpu().numpy().ravel()
                found, labels = found[labels != IGNORED], labels[labels != IGNORED]
            else:
                found = sample['pred_label'].cpu().numpy()
                labels = sample['gt_label'].cpu().numpy()
                found = found.repeat(len(labels))  # an image may have several labels
            highest = max(labels.max(initial=0), found.max(initial=0))
            if highest >= count:
                raise UserError(
                    f'labels and predictions must be less than {count}, the number of '
                    f'classes of the data set, got {highest}'
                )
            index = labels.astype(np.int64) * count + found
            # A whole matrix for each image would have 8 MB with 1,000 classes.
            if of_pixels:
                counts = np.bincount(index)
                pairs = np.flatnonzero(counts)
                counts = counts[pairs]
            else:
                pairs, counts = np.unique(index, return_counts=True)
            self.results.append((of_pixels, pairs, counts))

    def compute_metrics(self, results: list) -> dict:
        side = len(self.dataset_meta['classes'])
        counts = np.zeros(side**2, np.int64)
        for _, pairs, number in results:
            counts[pairs] += number
        counts = self.confusion = counts.reshape(side, side)
        hits, labels, found = counts.diagonal(), counts.sum(1), counts.sum(0)
        if results[0][0]:
            figures = dict(IoU=(hits, labels + found - hits), accuracy=(hits, labels))
        else:
            figures = dict(precision=(hits, found), recall=(hits, labels))
        self.classes = {
            name: {
                key: 100 * float(top[i] / all_[i]) if all_[i] else float('nan')
                for key, (top, all_) in figures.items()
            }
            for i, name in enumerate(distinct(self.dataset_meta['classes']))
        }
        return {}
