"""Sampling of feature maps in boxes, shared by mmcv's pooling operators.

A box has bins, and a bin has samples. Each sample is a weighted sum of four pixels, and
a bin is a weighted sum of its samples. So a bin is one bag of pixels, and PyTorch's
embedding bags compute all bins at once, whatever the number of samples of each.

Shapes: B batch, C channels, H W height and width of a feature map, N boxes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def bilinear(y: Tensor, x: Tensor, height: int, width: int):
    """Return flat positions and weights of the four pixels around each point.

    A point up to one pixel outside the map takes the border's value. Further out, all
    its weights are 0. Both have shape (4, ...).
    """
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.detach().floor(), x.detach().floor()
    dy, dx = y - top, x - left
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    positions = torch.stack(
        [
            top * width + left,
            top * width + right,
            bottom * width + left,
            bottom * width + right,
        ]
    ).long()
    weights = torch.stack([(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx])
    return positions, weights * inside


@dataclass
class BinSamples:
    """Samples of all bins of all boxes, ordered by bin.

    Attributes:
        box: index of each sample's box.
        bin: index of each sample's bin, over all boxes.
        y, x: position of each sample in its box, from 0 to the number of bins.
        counts: number of samples of each bin, over all boxes.
    """

    box: Tensor
    bin: Tensor
    y: Tensor
    x: Tensor
    counts: Tensor


def starts_of(counts: Tensor) -> Tensor:
    """Return where each run starts among runs of the given lengths."""
    return counts.cumsum(0) - counts


def place_samples(sides: Tensor, bins: tuple[int, int], ratio: int) -> BinSamples:
    """Spread samples evenly over the bins of boxes.

    Args:
        sides: height and width of the boxes in pixels, shape (N, 2).
        bins: number of bins of a box along y and x.
        ratio: samples per bin and axis; 0 takes about one per pixel.
    """
    grid = sides.new_tensor(bins)
    if ratio > 0:
        samples = torch.full_like(sides, ratio)
    else:
        samples = (sides.detach() / grid).ceil().clamp(min=0)
    samples = samples.long()  # (N, 2)
    number = bins[0] * bins[1]
    counts = samples.prod(1).repeat_interleave(number)
    bin = torch.repeat_interleave(counts)
    box = bin // number
    place = torch.arange(bin.numel(), device=bin.device) - starts_of(counts)[bin]
    rows, columns = samples[box].unbind(1)
    bin_y, bin_x = bin % number // bins[1], bin % bins[1]
    y = bin_y + ((place // columns).to(sides) + 0.5) / rows
    x = bin_x + ((place % columns).to(sides) + 0.5) / columns
    return BinSamples(box, bin, y, x, counts)


def pool_pixels(
    features: Tensor, positions: Tensor, weights: Tensor, counts: Tensor
) -> Tensor:
    """Return weighted sums of pixels, shape (number of bags, C).

    Args:
        features: shape (B, C, H, W).
        positions: flat index of each pixel over the batch, ordered by bag.
        weights: shape as `positions`.
        counts: number of pixels of each bag.
    """
    table = features.permute(0, 2, 3, 1).reshape(-1, features.size(1))
    return F.embedding_bag(
        positions, table, starts_of(counts), mode='sum', per_sample_weights=weights
    )


def pool_samples(
    features: Tensor, images: Tensor, y: Tensor, x: Tensor, samples: BinSamples
) -> Tensor:
    """Return the average of each bin's samples, shape (number of bins, C).

    The result is differentiable in features, y and x. A bin without samples is 0.

    Args:
        features: shape (B, C, H, W).
        images: index of each box's image, shape (N,).
        y, x: position of each sample in its feature map.
    """
    H, W = features.shape[2:]
    positions, weights = bilinear(y, x, H, W)  # (4, samples)
    positions = positions + images[samples.box] * (H * W)
    weights = weights / samples.counts[samples.bin]
    return pool_pixels(
        features, positions.T.flatten(), weights.T.flatten(), 4 * samples.counts
    )


def boxes_first(pooled: Tensor, bins: tuple[int, int]) -> Tensor:
    """Return bins of shape (N * number of bins, C) as (N, C, *bins)."""
    return pooled.unflatten(0, (-1, *bins)).permute(0, 3, 1, 2)


def gradients(output: Tensor, inputs: list[Tensor], grad_output: Tensor):
    """Return the gradients of the inputs, zeros where the output has no samples."""
    return torch.autograd.grad(
        output, inputs, grad_output.to(output.dtype), materialize_grads=True
    )
