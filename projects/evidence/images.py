"""Photographs in memory as uint8, and augmentation of whole batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.datasets.fashion_mnist import TRAINED, load_split

FOLDER = Path('data/fashion_mnist')
MEAN, DEVIATION = 72.94, 90.02  # of the pixels of the training images


@dataclass(frozen=True)
class Labeled:
    """Hold images (P, 1, H, W), uint8, and labels (P,), int64."""

    images: Tensor
    labels: Tensor

    def part(self, chosen: Tensor | slice) -> 'Labeled':
        return Labeled(self.images[chosen], self.labels[chosen])

    def of(self, classes: Sequence[int]) -> 'Labeled':
        """Return the images of some classes, whose labels become their places."""
        places = self.labels[:, None] == torch.tensor(classes)
        kept = places.any(1)
        return Labeled(self.images[kept], places[kept].long().argmax(1))


def load(folder: Path, split: str) -> Labeled:
    images, labels = map(torch.tensor, load_split(folder, split))
    return Labeled(images[:, None], labels.long())


@cache
def load_splits(folder: Path = FOLDER) -> dict[str, Labeled]:
    """Return 'train', 'validation' (the last 5,000 training images) and 'test'."""
    train = load(folder, 'train')
    return dict(
        train=train.part(slice(TRAINED)),
        validation=train.part(slice(TRAINED, None)),
        test=load(folder, 'test'),
    )


def mirrored(images: Tensor) -> Tensor:
    """Return images (B, C, H, W) of which each is mirrored with a chance of a half."""
    chosen = torch.rand(len(images), 1, 1, 1) < 0.5
    return torch.where(chosen, images.flip(-1), images)


def scattered(images: Tensor, size: int) -> Tensor:
    """Return (B, C, size, size): each image at a random place, and black elsewhere."""
    B, C, H, W = images.shape
    y, x = torch.randint(size - H + 1, (2, B, 1))  # images are square
    rows, columns = y + torch.arange(H), x + torch.arange(W)
    out = images.new_zeros(B, C, size, size)
    index = torch.arange(B)[:, None, None, None], torch.arange(C)[None, :, None, None]
    out[*index, rows[:, None, :, None], columns[:, None, None, :]] = images
    return out


def normalized(images: Tensor, size: int) -> Tensor:
    """Return float images (B, C, size, size), enlarged bilinearly if need be."""
    x = (images.float() - MEAN) / DEVIATION
    if images.shape[-1] == size:
        return x
    return F.interpolate(x, (size, size), mode='bilinear')
