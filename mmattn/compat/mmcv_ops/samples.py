"""Sampling of feature maps in boxes, shared by mmcv's pooling operators.

A box has bins, and a bin has a grid of samples. Each sample is a weighted sum of four
pixels, and a bin is the mean of its samples. So a bin is one bag of pixels, and
PyTorch's embedding bags compute all bins at once, whatever their numbers of samples.

Shapes: B batch, C channels, H W height and width of a feature map, N boxes, R bins of
all boxes. Points are (y, x).
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def bilinear(y: Tensor, x: Tensor, height: int, width: int):
    """Return flat positions and weights of the four pixels around each point.

    A point up to one pixel outside the map takes the border's value. Further out, and
    where a coordinate is NaN, all its weights are 0. Both have the points' shape and a
    last dimension of 4.
    """
    inside = (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    y, x = (v.where(inside, 0) for v in (y, x))
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.detach().floor(), x.detach().floor()
    dy, dx = y - top, x - left
    top, left = top.long(), left.long()
    rows = torch.stack([top, (top + 1).clamp(max=height - 1)], -1) * width
    columns = torch.stack([left, (left + 1).clamp(max=width - 1)], -1)
    of_rows = torch.stack([1 - dy, dy], -1) * inside[..., None]
    of_columns = torch.stack([1 - dx, dx], -1)
    positions = rows[..., None] + columns[..., None, :]
    weights = of_rows[..., None] * of_columns[..., None, :]
    return positions.flatten(-2), weights.flatten(-2)


def starts_of(counts: Tensor) -> Tensor:
    """Return where each run starts among runs of the given lengths."""
    return counts.cumsum(0) - counts


def bin_corners(bins: tuple[int, int], like: Tensor) -> Tensor:
    """Return the first corner of each bin of a box, in units of bins, (bins, 2)."""
    sides = [torch.arange(n, device=like.device) for n in bins]
    return torch.cartesian_prod(*sides).view(-1, 2).to(like.dtype)


def samples_per_bin(sides: Tensor, ratio: int) -> Tensor:
    """Return the number of samples of bins along y and x.

    Args:
        sides: height and width of the bins in pixels, shape (R, 2).
        ratio: samples per axis; 0 takes about one per pixel, and none in a bin
            that is not finite.
    """
    if ratio > 0:
        return torch.full_like(sides, ratio, dtype=torch.long)
    sides = sides.detach().nan_to_num(posinf=0)
    return sides.ceil().clamp(min=0).long()


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
        positions.flatten(),
        table,
        starts_of(counts),
        mode='sum',
        per_sample_weights=weights.flatten(),
    )


def pool_bins(
    features: Tensor,
    images: Tensor,
    corner: Tensor,
    down: Tensor,
    right: Tensor,
    samples: Tensor,
    ratio: int,
) -> Tensor:
    """Return the mean of each bin's samples, shape (R, C).

    The result is differentiable in the features and in the bins' geometry. A bin
    without samples is 0.

    Args:
        features: shape (B, C, H, W).
        images: index of each bin's image, shape (R,).
        corner: the point where each bin begins, shape (R, 2).
        down, right: the sides of each bin, which samples divide evenly, shape (R, 2).
        samples: number of samples along both sides, shape (R, 2).
        ratio: this number if it is the same everywhere, otherwise 0.
    """
    H, W = features.shape[2:]
    counts = samples.prod(1)
    shares = torch.cat([down, right], 1) / samples.repeat_interleave(2, 1)
    start = corner + (shares[:, :2] + shares[:, 2:]) / 2
    table = torch.cat([start, shares], 1).T.contiguous()
    images, scale = images * (H * W), 1 / counts
    if ratio > 0:
        bin_values = [column[:, None, None] for column in (*table, images, scale)]
        j = torch.arange(ratio, device=corner.device)
        i = j[:, None]
    else:
        bin = torch.repeat_interleave(counts)
        place = torch.arange(bin.numel(), device=bin.device) - starts_of(counts)[bin]
        columns = samples[:, 1][bin]
        i = place // columns
        j = place - i * columns
        bin_values = [column[bin] for column in (*table, images, scale)]
    y, x, down_y, down_x, right_y, right_x, images, scale = bin_values
    positions, weights = bilinear(
        y + i * down_y + j * right_y, x + i * down_x + j * right_x, H, W
    )
    positions, weights = positions + images[..., None], weights * scale[..., None]
    return pool_pixels(features, positions, weights.to(features.dtype), 4 * counts)


def boxes_first(pooled: Tensor, bins: tuple[int, int]) -> Tensor:
    """Return bins of shape (N * number of bins, C) as (N, C, *bins)."""
    return pooled.unflatten(0, (-1, *bins)).permute(0, 3, 1, 2)


def gradients(output: Tensor, inputs: list[Tensor], grad_output: Tensor):
    """Return the gradients of the inputs, zeros where the output has no samples."""
    return torch.autograd.grad(
        output, inputs, grad_output.to(output.dtype), materialize_grads=True
    )
