"""Compare an exported model with PyTorch by the test pipeline of its config.

`mmattn.export.verification` gives both the same tensor. Here PyTorch reads, resizes and
pads each image as its package does, and the file as `Runner` does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DefaultScope
from mmengine.structures import BaseDataElement
from torch import nn

from ..engine.data import DataError, build_dataset, innermost_dataset
from ..engine.data.checked_dataset import leaves
from ..results import Classification, Detections, Segmentation
from ..results.samples import as_result
from .errors import ExportError
from .inputs import prepare, read, stack
from .metrics import accuracy, average_precision, coco_of, confusion, overlap
from .runner import Runner

Result = Detections | Segmentation | Classification
KEY = 'test_dataloader.dataset'
# Two objects are the same if they have one class, and boxes and scores differ by less.
MAX_PIXELS = 1.0
MAX_SCORE = 0.01
MAX_SCORES = 1e-3  # of a classifier's equal results
# Rounding may change which of two near ties NMS keeps, or the class of a pixel.
MIN_COMMON = 0.99


@dataclass
class Sample:
    """An image that the test pipeline prepared.

    Attributes:
        path: file of the image.
        packed: `inputs` and `data_samples`.
        instances: annotated objects of a detector's test set, else None.
    """

    path: str
    packed: dict
    instances: Sequence[Mapping] | None = None


class LabeledImages:
    """Images of a config's test set, evenly spaced.

    Raises:
        DataError: the test set cannot be read here.
    """

    def __init__(self, cfg: Config, count: int):
        dataset = (cfg.get('test_dataloader') or {}).get('dataset')
        if dataset is None:
            raise DataError('the config has no test_dataloader.dataset')
        built = build_dataset(dataset, KEY, download=False)
        _, self.dataset = next(leaves(built, KEY))
        total = len(self.dataset)
        count = min(count, total)
        self.indices = ((np.arange(count) + 0.5) * total // count).astype(int).tolist()
        infos = [self.dataset.get_data_info(i) for i in self.indices]
        self.paths = [info.get('img_path') for info in infos]
        missing = [path for path in self.paths if not (path and Path(path).is_file())]
        if missing:
            raise DataError(f'{KEY}: there is no image at {missing[0]}')
        self.instances = [info.get('instances') for info in infos]
        self.name = f'{count} of {total} images of {KEY}'

    def __iter__(self) -> Iterator[Sample]:
        for index, *sample in zip(
            self.indices, self.paths, self.instances, strict=True
        ):
            path, instances = sample
            yield Sample(path, self.dataset[index], instances)


class GivenImages:
    """Images without annotations."""

    def __init__(self, cfg: Config, paths: Sequence[str | Path]):
        dataset = innermost_dataset(cfg.get('test_dataloader'))
        self.steps = [
            step
            for step in dataset.get('pipeline') or ()
            if not step['type'].rpartition('.')[2].startswith('LoadAnnotations')
        ]
        self.paths = list(map(str, paths))
        self.name = f'{len(self.paths)} images'

    def __iter__(self) -> Iterator[Sample]:
        pipeline = Compose(self.steps)
        for path in self.paths:
            yield Sample(path, pipeline(dict(img_path=path, img_id=0)))


@dataclass
class Tally:
    """Count what PyTorch and a file have in common.

    Attributes:
        expected: objects, pixels or images of PyTorch.
        found: objects, pixels or images of the file.
        common: those that are the same.
        score: largest difference of their scores.
        box: largest difference of their boxes, in pixels.
        overlap: sum of the intersections over unions of their masks, None without.
        spare: how many may differ in any case.
    """

    images: int = 0
    expected: int = 0
    found: int = 0
    common: int = 0
    score: float = 0.0
    box: float = 0.0
    overlap: float | None = None
    spare: int = 0

    def add(self, expected: Result, found: Result):
        """Count the results of an image."""
        self.images += 1
        if isinstance(expected, Detections):
            self._add_objects(expected, found)
        elif isinstance(expected, Segmentation):
            self.expected += expected.labels.size
            self.found += found.labels.size
            self.common += int((expected.labels == found.labels).sum())
        else:
            self.expected, self.found = self.images, self.images
            differs = float(np.abs(expected.scores - found.scores).max())
            self.common += differs <= MAX_SCORES
            self.score = max(self.score, differs)

    def _add_objects(self, expected: Detections, found: Detections):
        self.spare = 1
        self.expected += len(expected)
        self.found += len(found)
        boxes = np.abs(expected.boxes[:, None] - found.boxes).max(2, initial=0)
        scores = np.abs(expected.scores[:, None] - found.scores)
        differs = expected.labels[:, None] != found.labels
        differs |= (boxes > MAX_PIXELS) | (scores > MAX_SCORE)
        distance = np.where(differs, np.inf, boxes + scores)
        for i in range(len(expected)):
            j = int(distance[i].argmin()) if len(found) else 0
            if not len(found) or distance[i, j] == np.inf:
                continue
            distance[:, j] = np.inf
            self.common += 1
            self.box = max(self.box, float(boxes[i, j]))
            self.score = max(self.score, float(scores[i, j]))
            if expected.masks is not None:
                both = expected.masks[i] & found.masks[j]
                either = expected.masks[i] | found.masks[j]
                shared = both.sum() / either.sum() if either.any() else 1.0
                self.overlap = (self.overlap or 0.0) + float(shared)

    @property
    def share(self) -> float:
        """Return how much is in common, where one object may be missing."""
        total = max(self.expected, self.found)
        if self.overlap is not None and self.overlap < MIN_COMMON * self.common:
            return self.overlap / self.common
        return 1.0 if total - self.common <= self.spare else self.common / total

    def describe(self, task: str) -> str:
        """Return the counts and differences as text."""
        if task == 'segmentation':
            share = 100 * self.common / max(self.expected, 1)
            return f'the same class in {share:.3f}% of the pixels'
        if task == 'classification':
            return f'scores differ by at most {self.score:.1e}'
        text = (
            f'{self.expected} objects in PyTorch, {self.found} in the file, '
            f'{self.common} in common'
        )
        if self.common:
            text += f'; boxes differ by at most {self.box:.1e} pixels'
            text += f', scores by {self.score:.1e}'
        if self.overlap is not None:
            text += f'; the mean IoU of masks is {self.overlap / self.common:.4f}'
        return text


class Metrics:
    """Measure results of PyTorch and of a file on annotated images."""

    def __init__(self, runner: Runner):
        self.task = runner.metadata.task
        self.with_masks = 'masks' in runner.metadata.outputs
        self.classes = len(runner.metadata.classes or ())
        self.images, self.annotations, self.labels = [], [], []
        self.results = [], []  # of PyTorch, of the file

    def add(self, sample: Sample, results: Sequence[Result]):
        """Add the results of an image; images without annotations do not count."""
        truth = sample.packed['data_samples']
        if not self.classes:
            return
        if self.task == 'detection' and sample.instances is not None:
            key = len(self.images)
            H, W = truth.ori_shape[:2]
            self.images.append(dict(id=key, height=H, width=W))
            for each in sample.instances:
                self.annotations.append(
                    _annotation(each, key, len(self.annotations) + 1)
                )
            values = [each.to_coco(key) for each in results]
        elif self.task == 'segmentation' and 'gt_sem_seg' in truth:
            labels = truth.gt_sem_seg.data[0].numpy()
            if labels.shape != results[0].labels.shape:
                return
            values = [confusion(labels, each.labels, self.classes) for each in results]
        elif self.task == 'classification' and _has_one_label(truth):
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
            categories = range(1, self.classes + 1)
            content = dict(images=self.images, annotations=self.annotations)
            content |= dict(categories=[dict(id=each) for each in categories])
            truth = coco_of(content)
            pair = [
                average_precision(
                    truth, dict(enumerate(each)), categories, self.with_masks
                )
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


def _has_one_label(truth: BaseDataElement) -> bool:
    return 'gt_label' in truth and truth.gt_label.numel() == 1


@dataclass
class Comparison:
    """Hold what a comparison found.

    Attributes:
        task: task of the model.
        same: of images that the file resizes and pads as PyTorch does.
        smaller: of images that the file shrinks to fit its shape.
        wider: of images that the file pads more than PyTorch does.
        metrics: value of PyTorch and of the file by the name of the metric.
        shape: the file's height and width.
    """

    task: str
    shape: Sequence[int]
    same: Tally = field(default_factory=Tally)
    smaller: Tally = field(default_factory=Tally)
    wider: Tally = field(default_factory=Tally)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(
        self,
        runner: Runner,
        path: str | Path,
        expected: Result,
        size: Sequence[int],
        padded: Sequence[int],
    ) -> Result:
        """Count the results of an image, and return the file's results.

        Args:
            runner: runs the exported model.
            path: file of the image.
            expected: results of PyTorch.
            size: height and width to which PyTorch resized the image.
            padded: those to which it padded it.
        """
        result = runner(path)
        prepared = prepare(read(path, runner.metadata), runner.metadata)
        pairs = zip(stack([prepared], runner.metadata).shape[2:], padded, strict=True)
        if tuple(prepared.size) != tuple(size):
            tally = self.smaller
        elif any(side > least for side, least in pairs):
            tally = self.wider
        else:
            tally = self.same
        tally.add(expected, result)
        return result

    def lines(self) -> list[str]:
        """Return the comparison as lines of text."""
        H, W = self.shape
        notes = {
            'same': '',
            'smaller': f' that the file makes smaller than PyTorch, to fit {H} x {W}'
            ' (--dynamic size keeps their size)',
            'wider': f' that the file pads to {H} x {W}, and PyTorch less'
            ' (--dynamic size pads as PyTorch)',
        }
        lines = []
        for kind, note in notes.items():
            tally = getattr(self, kind)
            if tally.images:
                what = tally.describe(self.task)
                lines.append(f'  {tally.images} images{note}: {what}')
        for name, (expected, found) in self.metrics.items():
            lines.append(
                f'  {name}: {expected:.4f} in PyTorch, {found:.4f} in the file'
            )
        return lines

    def check(self):
        """Raise an ExportError if images of the same input have other results."""
        if self.same.share < MIN_COMMON:
            raise ExportError(
                'the exported model does not repeat PyTorch on images that both '
                f'prepare alike: {self.same.describe(self.task)}'
            )


@torch.no_grad()
def compare(
    model: nn.Module, runner: Runner, cfg: Config, images: LabeledImages | GivenImages
) -> Comparison:
    """Compare the results of an exported model with PyTorch's.

    Args:
        model: the model that was exported.
        runner: runs the exported one.
        cfg: the config of both.
        images: images that the test pipeline prepares.
    """
    metadata = runner.metadata
    found = Comparison(metadata.task, metadata.shape)
    metrics = Metrics(runner)
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for sample in images:
            batch = pseudo_collate([sample.packed])
            tensor = model.data_preprocessor(batch, False)['inputs']
            (output,) = model.test_step(batch)
            size = output.ori_shape[:2]
            expected = as_result(output, metadata.classes, metadata.palette, size)
            resized = sample.packed['inputs'].shape[-2:]
            result = found.add(
                runner, sample.path, expected, resized, tensor.shape[-2:]
            )
            metrics.add(sample, (expected, result))
    found.metrics = metrics.measured()
    return found
