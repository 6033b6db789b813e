"""Detectors of torchvision: how they prepare images, and what they predict."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from ..images import read_image
from ..results import Detections
from ..results.names import class_names
from .comparison import Comparison
from .errors import ExportError
from .runner import Runner


def preparation(model: nn.Module) -> dict:
    """Return what the metadata tell of a detector's images.

    Raises:
        ExportError: the model has no `transform` of torchvision's detectors.
    """
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


@torch.no_grad()
def compare(
    model: nn.Module, runner: Runner, paths: Iterable[str | Path]
) -> Comparison:
    """Compare the boxes of an exported detector with torchvision's.

    Masks are not compared: torchvision rounds their boxes to pixels.

    Args:
        model: the detector, in evaluation mode.
        runner: runs the exported one.
        paths: files of images.
    """
    found = Comparison('detection', runner.metadata.shape)
    for path in paths:
        image = torch.tensor(read_image(path)).permute(2, 0, 1) / 255
        batch, _ = model.transform([image])
        (result,) = model([image])
        boxes, scores, labels = (
            result[key].numpy() for key in ('boxes', 'scores', 'labels')
        )
        names = class_names(runner.metadata.classes, labels)
        expected = Detections(boxes, scores, labels, names)
        (size,) = batch.image_sizes
        found.add(runner, path, expected, size, batch.tensors.shape[-2:])
    return found
