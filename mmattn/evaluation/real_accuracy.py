"""Accuracy on the reassessed labels (ReaL) of the validation images of ImageNet-1k."""

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from mmengine.evaluator import BaseMetric

from mmattn.errors import UserError
from mmattn.registry import METRICS

NUM_CLASSES = 1000
NAME = re.compile(r'ILSVRC2012_val_(\d{8})')
TIMMS_COPY = 'data/_info/imagenet_real_labels.json'


@METRICS.register_module()
class ReaLAccuracy(BaseMetric):
    """Share of images whose top predictions have one of the image's ReaL labels.

    Beyer et al., "Are we done with ImageNet?", https://arxiv.org/abs/2006.07159. An
    image may have several labels. Images without any do not count, 3,163 of 50,000.

    Args:
        ann_file: `real.json` of https://github.com/google-research/reassessed-imagenet,
            a list with the list of labels of each image, from
            ILSVRC2012_val_00000001.JPEG on. None takes the copy in timm. Images are
            found by their names, so they may be in any folders and order.
        topk: an image counts as correct if one of its labels is among the `k` largest
            scores.
        collect_device, prefix: as for any metric; results are `ReaL/top<k>`, in per
            cent.

    Raises:
        ValueError: `topk` has a number below 1, the file has another format, or a name
            of an image is not of ImageNet's validation set.
    """

    default_prefix = 'ReaL'

    def __init__(
        self,
        ann_file: str | None = None,
        topk: int | Sequence[int] = (1,),
        collect_device: str = 'cpu',
        prefix: str | None = None,
    ):
        super().__init__(collect_device=collect_device, prefix=prefix)
        self.topk = (topk,) if isinstance(topk, int) else tuple(topk)
        if not self.topk or min(self.topk) < 1:
            raise UserError(f'topk must be numbers of at least 1, got {topk}')
        self.labels = read_real_labels(ann_file)

    def process(self, data_batch: dict, data_samples: Sequence[dict]):
        """Append for each sample whether each `k` is correct; None without labels."""
        for sample in data_samples:
            labels = self.labels_of(sample['img_path'])
            if not labels:
                self.results.append(None)
                continue
            scores = sample['pred_score']
            if max(self.topk) > len(scores):
                raise UserError(
                    f'topk must be at most the {len(scores)} classes, got {self.topk}'
                )
            best = scores.topk(max(self.topk)).indices.tolist()
            self.results.append([not labels.isdisjoint(best[:k]) for k in self.topk])

    def labels_of(self, path: str) -> frozenset[int]:
        """Return the labels of an image of the validation set, found by its name."""
        found = NAME.fullmatch(Path(path).stem)
        index = int(found[1]) if found else 0
        if not 1 <= index <= len(self.labels):
            raise UserError(
                f'ReaL labels are for ILSVRC2012_val_00000001 to '
                f'{len(self.labels):08d}, got {path}'
            )
        return self.labels[index - 1]

    def compute_metrics(self, results: list[list[bool] | None]) -> dict[str, float]:
        """Return the accuracy in per cent for each `k`."""
        counted = [result for result in results if result is not None]
        if not counted:
            raise UserError(f'none of the {len(results)} images has a ReaL label')
        means = 100 * torch.tensor(counted, dtype=torch.float64).mean(0)
        return {
            f'top{k}': mean.item() for k, mean in zip(self.topk, means, strict=True)
        }


def read_real_labels(path: str | None = None) -> list[frozenset[int]]:
    """Read the labels of each validation image from a `real.json`.

    Args:
        path: the file; None takes timm's copy.

    Raises:
        ValueError: there is no such file, or it is not a list of lists of classes.
    """
    if path is None:  # importing timm would import all of its models
        path = Path(find_spec('timm').origin).parent / TIMMS_COPY
    file = Path(path)
    if not file.is_file():
        raise UserError(
            f'no ReaL labels at {file}: pass `real.json` of '
            'https://github.com/google-research/reassessed-imagenet as ann_file'
        )
    try:
        rows = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f'{file} is not a JSON file: {error}') from error
    if not isinstance(rows, list) or not rows:
        raise UserError(f'{file} must hold a list of lists, got {type(rows).__name__}')
    for index, row in enumerate(rows):
        if not isinstance(row, list) or not all(map(_is_class, row)):
            raise UserError(
                f'{file}: entry {index} must be a list of classes from 0 to '
                f'{NUM_CLASSES - 1}, got {row!r}'
            )
    return [frozenset(row) for row in rows]


def _is_class(label: object) -> bool:
    return type(label) is int and 0 <= label < NUM_CLASSES
