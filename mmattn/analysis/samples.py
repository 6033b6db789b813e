"""Run a trained model on images to validate on, and find those it does worst."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS

from ..engine.model import build_model
from ..files.config_files import raw_channels
from ..images import read_channels, read_image, shown
from ..results import SCORE, Classification, Detections, Segmentation
from ..results.matching import match
from ..results.samples import as_result, truth_of

Result = Detections | Segmentation | Classification
IGNORED = 255


@dataclass
class Sample:
    """An image with its annotations and the prediction, without masks of objects.

    Attributes:
        index: in the data set.
        path: file of the image.
        truth: the annotations.
        found: the prediction.
    """

    index: int
    path: str
    truth: Result
    found: Result

    def errors(self) -> tuple[int, int]:
        """Return the missed objects and the false ones with a score of at least 0.3.

        Of a label map, return the wrong pixels and 0; of a class, 0 or 1, and 0.
        """
        if isinstance(self.found, Detections):
            found = self.found.above(SCORE)
            pairs = match(found.boxes, self.truth.boxes)
            hits = sum(
                found.labels[i] == self.truth.labels[j] for i, j in pairs.items()
            )
            return len(self.truth) - int(hits), len(found) - int(hits)
        if isinstance(self.found, Segmentation):
            labels = self.truth.labels
            return int(((labels != self.found.labels) & (labels != IGNORED)).sum()), 0
        return int(self.truth.label != self.found.label), 0

    def badness(self) -> float:
        """Return how bad the prediction is, to sort by."""
        if isinstance(self.found, Classification):
            return 1 - float(self.found.scores[self.truth.label])
        return sum(self.errors())

    def described(self) -> str:
        """Return the errors in words."""
        missed, false = self.errors()
        if isinstance(self.found, Detections):
            return f'{missed} of {len(self.truth)} missed, {false} false'
        if isinstance(self.found, Segmentation):
            return f'{missed / self.truth.labels.size:.0%} of the pixels wrong'
        (name, score), *_ = self.found.top(1)
        return f'{self.truth.top(1)[0][0]} as {name} {score:.2f}'


class Validation:
    """The model of a run, and the images that it is validated on.

    Args:
        cfg: config of the run.
        checkpoint: its weights.
    """

    def __init__(self, cfg: Config, checkpoint: str):
        self.dataset = DATASETS.build(cfg.val_dataloader.dataset)
        self.channels = raw_channels(cfg)
        self.model, _ = build_model(cfg, checkpoint)
        classes = self.dataset.metainfo.get('classes')
        palette = self.dataset.metainfo.get('palette')
        self.named = list(classes) if classes else None, palette

    def __len__(self) -> int:
        return len(self.dataset)

    @torch.no_grad()
    def predict(self, index: int) -> tuple[np.ndarray, str, Result, Result]:
        """Return an image as RGB, its path, its annotations and its prediction."""
        data = self.dataset[index]
        path = data['data_samples'].img_path
        image = (
            read_image(path)
            if self.channels is None
            else shown(read_channels(path, self.channels))
        )
        truth = truth_of(data['data_samples'], *self.named, image.shape[:2])
        (sample,) = self.model.test_step(pseudo_collate([data]))
        found = as_result(sample, *self.named, image.shape[:2])
        return image, path, truth, found

    def samples(self, count: int) -> Iterator[Sample]:
        """Yield the predictions of evenly spaced images, without masks."""
        for index in spaced(len(self), count):
            _, path, truth, found = self.predict(index)
            if isinstance(found, Detections):
                truth, found = replace(truth, masks=None), replace(found, masks=None)
            yield Sample(index, path, truth, found)


def spaced(length: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced indices."""
    places = np.linspace(0, length - 1, min(count, length)).round().astype(int)
    return sorted(set(places.tolist()))
