"""Compare an exported model with PyTorch, each with its own preparation of images.

`mmattn.export.verification` gives both the same tensor. Here PyTorch reads, resizes and
pads each image as its package does, and the file as `Runner` does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..results import Classification, Detections, Segmentation
from .errors import ExportError
from .inputs import batch_shape, prepare
from .metadata import Metadata
from .metrics import Metrics
from .runner import Runner

Result = Detections | Segmentation | Classification
# Two objects are the same if they have one class, and boxes and scores differ by less.
MAX_PIXELS = 1.0
MAX_SCORE = 0.01
MAX_SCORES = 1e-3  # of a classifier's equal results
# Rounding may change which of two near ties NMS keeps, or the class of a pixel.
MIN_COMMON = 0.99


@dataclass
class Images:
    """Images to compare on.

    Attributes:
        packed: returns `inputs` and `data_samples` of the image of an index, where a
            test pipeline prepares it.
        instances: annotated objects of each image of a detector's test set.
    """

    name: str
    paths: list[str]
    packed: Callable[[int], dict] | None = None
    instances: Sequence | None = None


@dataclass
class Prediction:
    """Hold what PyTorch predicts for an image.

    Attributes:
        size: height and width to which the image is resized.
        padded: height and width to which it is padded.
        truth: the sample with its annotations, if there are any.
        instances: annotated objects of a detector's test set, else None.
    """

    path: str
    result: Result
    size: Sequence[int]
    padded: Sequence[int]
    truth: Any = None
    instances: Sequence[Mapping] | None = None


@dataclass
class Tally:
    """Count what PyTorch and a file have in common.

    Attributes:
        expected, found, common: objects, pixels or images of PyTorch, of the file, and
            those that are the same.
        score, box: largest difference of their scores, and of their boxes in pixels.
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
        text = f'{self.expected} objects in PyTorch, {self.found} in the file, '
        text += f'{self.common} in common'
        if self.common:
            text += f'; boxes differ by at most {self.box:.1e} pixels'
            text += f', scores by {self.score:.1e}'
        if self.overlap is not None:
            text += f'; the mean IoU of masks is {self.overlap / self.common:.4f}'
        return text


@dataclass
class Comparison:
    """Hold what a comparison found.

    Attributes:
        metadata: of the file.
        same: of images that the file resizes and pads as PyTorch does.
        smaller: of images that the file shrinks to fit its shape.
        wider: of images that the file pads more than PyTorch does.
        metrics: value of PyTorch and of the file by the name of the metric.
    """

    metadata: Metadata
    same: Tally = field(default_factory=Tally)
    smaller: Tally = field(default_factory=Tally)
    wider: Tally = field(default_factory=Tally)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, runner: Runner, prediction: Prediction) -> Result:
        """Count the results of an image, and return the file's result."""
        prepared = prepare(prediction.path, self.metadata)
        (result,) = runner.predict([prepared])
        padded = batch_shape([prepared], self.metadata)
        if tuple(prepared.size) != tuple(prediction.size):
            tally = self.smaller
        elif np.greater(padded, prediction.padded).any():
            tally = self.wider
        else:
            tally = self.same
        tally.add(prediction.result, result)
        return result

    def lines(self) -> list[str]:
        """Return the comparison as lines of text."""
        shape = '{} x {}'.format(*self.metadata.shape)
        tallies = {
            '': self.same,
            f' that the file makes smaller than PyTorch, to fit {shape} '
            '(--dynamic size keeps their size)': self.smaller,
            f' that the file pads to {shape}, and PyTorch less '
            '(--dynamic size pads as PyTorch)': self.wider,
        }
        return [
            f'  {tally.images} images{note}: {tally.describe(self.metadata.task)}'
            for note, tally in tallies.items()
            if tally.images
        ] + [
            f'  {name}: {expected:.4f} in PyTorch, {found:.4f} in the file'
            for name, (expected, found) in self.metrics.items()
        ]

    def check(self):
        """Raise an ExportError if images of the same input have other results."""
        if self.same.share < MIN_COMMON:
            raise ExportError(
                'the exported model does not repeat PyTorch on images that both '
                f'prepare alike: {self.same.describe(self.metadata.task)}'
            )


def compare(runner: Runner, predictions: Iterable[Prediction]) -> Comparison:
    """Compare the results of an exported model with PyTorch's."""
    found, metrics = Comparison(runner.metadata), Metrics(runner.metadata)
    for each in predictions:
        metrics.add(each, found.add(runner, each))
    found.metrics = metrics.measured()
    return found
