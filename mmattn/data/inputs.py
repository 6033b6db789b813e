"""How a converted config reads images: in RGB, or with all of their channels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mmattn.errors import UserError

from ..images import read_channels

# Of the images of ImageNet, RGB. All published weights here were trained with it.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SAMPLE = 100  # training images whose values are averaged
PREPROCESSORS = {  # that keep the order of the channels
    'detection': "type='mmattn.DetDataPreprocessor', bgr_to_rgb=False,",
    'segmentation': "type='mmattn.SegDataPreProcessor', bgr_to_rgb=False,",
    'classification': 'to_rgb=False,',
}


@dataclass(frozen=True)
class Inputs:
    """Parts of a config about the images.

    Attributes:
        load: the step of a pipeline.
        mean: of each channel.
        std: of each channel.
        about: the comment on them.
        preprocessor: lines of further arguments of the data preprocessor.
        backbone: arguments of the backbone.
    """

    load: str = "dict(type='LoadImageFromFile')"
    mean: Sequence[float] = MEAN
    std: Sequence[float] = STD
    about: str = 'The colors of ImageNet, which published weights have seen.'
    preprocessor: Sequence[str] = ()
    backbone: str = ''


CLASSIFIER = Inputs(
    preprocessor=['num_classes=num_classes,'], backbone='out_indices=3, '
)


def find_inputs(images: Sequence, channels: int | None, task: str) -> Inputs:
    """Return how training images are read, with the mean and std of their channels.

    Args:
        images: to train on, with the `path` of their files.
        channels: of TIFF files that are read as they are; None for RGB.
        task: a key of `PREPROCESSORS`.
    """
    inputs = CLASSIFIER if task == 'classification' else Inputs()
    if channels is None:
        return inputs
    paths = [each.path for each in images[:: -(-len(images) // SAMPLE)]]
    mean, std = statistics(paths, channels)
    return replace(
        inputs,
        load=f"dict(type='mmattn.LoadChannels', channels={channels})",
        mean=mean,
        std=std,
        about='Of each channel, in the values of the files.',
        preprocessor=(*inputs.preprocessor, PREPROCESSORS[task]),
        backbone=f'in_channels={channels}, {inputs.backbone}',
    )


def statistics(paths: Sequence[Path], channels: int) -> tuple[list, list]:
    """Return the mean and std of each channel; one of a single value has the std 1.

    Raises:
        ValueError: a pixel is no number.
    """
    count, sums = 0, np.zeros((2, channels))  # of values and squares
    for path in paths:
        pixels = read_channels(path, channels).astype(np.float64).reshape(-1, channels)
        if not np.isfinite(pixels).all():
            raise UserError(f'{path} has pixels that are no number: fill them')
        count += len(pixels)
        sums += pixels.sum(0), (pixels**2).sum(0)
    mean, squares = sums / count
    std = np.sqrt(np.maximum(squares - mean**2, 0))
    std[std == 0] = 1
    return [[float(f'{value:.4g}') for value in each] for each in (mean, std)]
