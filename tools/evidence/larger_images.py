"""Change one property of a larger test image at a time, and test a trained network.

A larger image has more patches, each of which shows a smaller part of an object. Two
numbers describe both: the number of patches on a side, and the distance of a patch's
pixels in pixels of the original. `sample` makes images of any pair of them, so their
effects can be told apart. The other functions vary what comes on top: padding, an empty
surrounding, landmarks, the interpolation of positions, and training at the new size.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.dataset import pseudo_collate
from mmengine.registry import DefaultScope
from torch import Tensor, nn

from mmattn.engine.data.build import build_dataset
from mmattn.models.layers import InteractiveAttention
from mmattn.models.layers.patches import pos_embed_map

TEST_IMAGES = 2500
LARGER = 11  # patches on a side, 7 in training: 1.57 times the size
PADDED = 42  # pixels on a side, which are padded to 11 patches
LANDMARKS = 6  # on a side, 4 in training: as many as the larger image needs
# A tenth of the training at the larger size, as 30 of 300 epochs in the paper.
TUNING_STEPS, BATCH, RATE = 80, 32, 4e-4


@dataclass(frozen=True)
class Labeled:
    """Hold normalized images (N, C, H, W) and their labels (N,)."""

    images: Tensor
    labels: Tensor


def load(model: nn.Module, dataset_cfg: dict, scope: str, count: int) -> Labeled:
    """Return the first images of a data set as the model gets them."""
    with DefaultScope.overwrite_default_scope(scope):
        dataset = build_dataset(dataset_cfg, 'dataset')
        packed = pseudo_collate([dataset[index] for index in range(count)])
        data = model.data_preprocessor(packed, False)
    labels = torch.cat([sample.gt_label for sample in data['data_samples']])
    return Labeled(data['inputs'], labels)


def sample(images: Tensor, patches: int, spacing: float, patch_size: int) -> Tensor:
    """Sample square images at the pixels of evenly spaced patches.

    With `spacing` 1 and as many patches as the images have, these are the images. With
    more patches, and the spacing smaller by the same factor, they are enlarged. With
    more patches alone, these overlap; with a smaller spacing alone, they show the
    middles of the original patches, enlarged.

    Args:
        images: shape (N, C, S, S).
        patches: number of patches on a side.
        spacing: distance between the pixels of a patch, in pixels of the images.
        patch_size: pixels on a side of a patch.

    Returns:
        Shape (N, C, P, P), P = patches * patch_size; bilinear, continued at the rim.
    """
    side = images.shape[-1]
    centers = (torch.arange(patches) + 0.5) * side / patches
    pixels = (torch.arange(patch_size) - (patch_size - 1) / 2) * spacing
    places = (centers[:, None] + pixels).flatten() * 2 / side - 1
    y, x = torch.meshgrid(places, places, indexing='ij')
    grid = torch.stack([x, y], -1).expand(len(images), -1, -1, -1)
    return F.grid_sample(
        images, grid.to(images), padding_mode='border', align_corners=False
    )


def accuracy(
    model: nn.Module, images: Tensor, labels: Tensor, rim: int = 0, batch: int = 250
) -> float:
    """Return the accuracy in percent.

    Args:
        model: an `ImageClassifier` whose neck averages the backbone's map.
        images, labels: see `Labeled`.
        rim: rows and columns of the map to leave out on each side.
        batch: number of images at a time.
    """
    correct = 0
    model.eval()
    with torch.no_grad():
        for some, truth in zip(images.split(batch), labels.split(batch), strict=True):
            outs = [
                feat[..., rim : feat.shape[-2] - rim, rim : feat.shape[-1] - rim]
                for feat in model.backbone(some)
            ]
            scores = model.head(model.neck(tuple(outs)))
            correct += (scores.argmax(1) == truth).sum().item()
    return 100 * correct / len(labels)


def with_positions(model: nn.Module, positions: Tensor) -> nn.Module:
    """Return a copy of a model whose backbone has the positions (H, W, C)."""
    model = copy.deepcopy(model)
    model.backbone.stem.grid_size = tuple(positions.shape[:2])
    model.backbone.stem.pos_embed = nn.Parameter(positions.flatten(0, 1)[None])
    return model


def surround(positions: Tensor, rim: int) -> Tensor:
    """Continue positions (H, W, C) by `rim` rows and columns on each side."""
    maps = positions.movedim(-1, 0)[None]
    return F.pad(maps, (rim,) * 4, mode='replicate')[0].movedim(0, -1)


def with_landmarks(model: nn.Module, landmarks: int) -> nn.Module:
    """Return a copy of a model with another number of landmarks on a side."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, InteractiveAttention):
            module.landmarks = landmarks
    return model


def tuned(model: nn.Module, data: Labeled, seed: int = 0) -> nn.Module:
    """Return a copy of a classifier that is trained once more on images and labels.

    AdamW with a cosine from `RATE` to 0 for one pass through the images, a random half
    of which is mirrored.
    """
    model = copy.deepcopy(model).train()
    steps = len(data.labels) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rng = np.random.default_rng(seed)
    for some, truth in zip(
        data.images.split(BATCH), data.labels.split(BATCH), strict=True
    ):
        mirrored = torch.from_numpy(rng.random(len(some)) < 0.5)
        some = torch.where(mirrored[:, None, None, None], some.flip(-1), some)
        scores = model.head(model.extract_feat(some))
        loss = model.head.loss_module(scores, truth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        cosine.step()
    return model


def accuracies(model: nn.Module, test: Labeled, train: Labeled) -> dict[str, float]:
    """Return accuracies in percent by what was changed.

    Args:
        model: an `ImageClassifier` with a `ViT`.
        test: images of the size of the training.
        train: images for `tuned`.
    """
    stem = model.backbone.stem
    size, (patches, _) = stem.patch_size, stem.grid_size
    small = patches / LARGER  # spacing of an enlarged image
    rim = (LARGER - patches) // 2

    def made(images: Tensor, number: int, spacing: float) -> Tensor:
        return sample(images, number, spacing, size)

    def tested(images: Tensor, network: nn.Module = model, rim: int = 0) -> float:
        return accuracy(network, images, test.labels, rim)

    def trained(number: int, spacing: float) -> float:
        images = made(train.images, number, spacing)
        network = tuned(model, Labeled(images, train.labels))
        return tested(made(test.images, number, spacing), network)

    def positions(number: int) -> Tensor:
        sides = (patches,) * 2, (number,) * 2
        return pos_embed_map(stem.pos_embed.detach(), *sides, mode='bilinear')[0]

    black = test.images.amin()
    larger = made(test.images, LARGER, small)
    enlarged = F.interpolate(test.images, (PADDED,) * 2, mode='bilinear')
    found = {
        'original': tested(test.images),
        'padded': tested(enlarged),
        'larger': tested(larger),
        'more patches': tested(made(test.images, LARGER, 1.0)),
        'enlarged patches': tested(made(test.images, patches, small)),
        'surrounded': tested(
            F.pad(test.images, (rim * size,) * 4, value=black.item()),
            with_positions(model, surround(positions(patches), rim)),
            rim,
        ),
        'bilinear positions': tested(larger, with_positions(model, positions(LARGER))),
        'tuned, original': trained(patches, 1.0),
        'tuned, larger': trained(LARGER, small),
    }
    if any(isinstance(module, InteractiveAttention) for module in model.modules()):
        found['more landmarks'] = tested(larger, with_landmarks(model, LANDMARKS))
    return found
