"""Photographs in memory as uint8, and augmentation of whole batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mmattn.datasets.fashion_mnist import TRAINED, load_split

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


def moved(images: Tensor, shift: int) -> Tensor:
    """Return images (B, C, H, W) after one random move and mirroring each.

    They move by up to `shift` pixels in both directions; their rims are continued. A
    half is mirrored.
    """
    B, C, H, W = images.shape
    dy, dx = torch.randint(-shift, shift + 1, (2, B, 1))
    columns = torch.arange(W)
    columns = torch.where(torch.rand(B, 1) < 0.5, columns, columns.flip(0))
    y = (torch.arange(H) + dy).clamp(0, H - 1)[:, None, :, None]
    x = (columns + dx).clamp(0, W - 1)[:, None, None, :]
    index = torch.arange(B)[:, None, None, None], torch.arange(C)[None, :, None, None]
    return images[*index, y, x]


def normalized(images: Tensor, size: int) -> Tensor:
    """Return float images (B, C, size, size), enlarged bilinearly if need be."""
    x = (images.float() - MEAN) / DEVIATION
    if images.shape[-1] == size:
        return x
    return F.interpolate(x, (size, size), mode='bilinear')


def mixed(x: Tensor, alpha: float) -> tuple[Tensor, Tensor, float]:
    """Return images mixed with those of a permutation, it, and the share of the first.

    The share is drawn from Beta(alpha, alpha), once for the batch, and is 1 if `alpha`
    is 0: Zhang et al.,
    "mixup: Beyond Empirical Risk Minimization", https://arxiv.org/abs/1710.09412.
    """
    share = torch.distributions.Beta(alpha, alpha).sample().item() if alpha else 1.0
    other = torch.randperm(len(x))
    return torch.lerp(x[other], x, share), other, share
