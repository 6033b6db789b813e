"""Detectors of torchvision: how they prepare images, and what they predict."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from ..engine.data import DataError
from ..images import read_image
from ..results import Detections
from ..results.names import class_names
from .comparison import Images, Prediction
from .errors import ExportError


class TorchvisionModel:
    """A detector of torchvision in evaluation mode; see `ConfigModel`.

    Args:
        classes: names of the labels, from 0 on.

    Raises:
        ExportError: the model has no `transform` of torchvision's detectors.
    """

    def __init__(self, model: nn.Module, classes: Sequence[str] | None = None):
        self.model = model
        self.entries = preparation(model) | dict(classes=classes and list(classes))

    def labeled(self, count: int) -> Images:
        raise DataError('a detector of torchvision has no test set')

    def given(self, paths: Sequence[str | Path]) -> Images:
        return Images(f'{len(paths)} images', list(map(str, paths)))

    @torch.no_grad()
    def predictions(self, images: Images) -> Iterator[Prediction]:
        """Yield the boxes that torchvision predicts.

        Masks are left out: torchvision rounds their boxes to pixels.
        """
        for path in images.paths:
            image = torch.tensor(read_image(path)).permute(2, 0, 1) / 255
            batch, _ = self.model.transform([image])
            (result,) = self.model([image])
            boxes, scores, labels = (
                result[key].numpy() for key in ('boxes', 'scores', 'labels')
            )
            names = class_names(self.entries['classes'], labels)
            expected = Detections(boxes, scores, labels, names)
            (size,) = batch.image_sizes
            yield Prediction(path, expected, size, batch.tensors.shape[-2:])


def preparation(model: nn.Module) -> dict:
    """Return what the metadata tell of a detector's images."""
    transform = getattr(model, 'transform', None)
    if type(transform) is not GeneralizedRCNNTransform:
        raise ExportError(
            f'{type(model).__name__} is neither a config nor a detector of torchvision'
        )
    resize = dict(keep_ratio=transform.fixed_size is None)
    if transform.fixed_size is None:
        short = min(transform.min_size[-1], transform.max_size)
        resize['scale'] = [transform.max_size, short]
    else:
        resize['scale'] = list(transform.fixed_size)
    return dict(
        mean=[255.0 * value for value in transform.image_mean],
        std=[255.0 * value for value in transform.image_std],
        channel_order='rgb',
        pad=dict(divisor=transform.size_divisible, value=0),
        resize=resize | dict(interpolation='bilinear', backend='torch'),
    )
