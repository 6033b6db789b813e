"""Pooling along borders of boxes and Bezier curves, with mmcv's arguments.

Shapes: B batch, C channels, H W height and width of a feature map, K boxes per image,
N curves.
"""

import torch

from .deform import widen
from .samples import (
    bilinear,
    boxes_first,
    pool_bins,
    pool_pixels,
    samples_per_bin,
    write_gradient,
)


def _borders(boxes, pool_size):
    """Return the first point of each border and the step to the next.

    Both have shape (B, K, 4, 2), borders in the order top, left, bottom, right, and
    points (y, x).
    """
    low, high = boxes[..., [1, 0]], boxes[..., [3, 2]]
    start = torch.stack([low, low, high, high], 2)
    height, width = ((high - low) / pool_size).unbind(-1)
    none = torch.zeros_like(width)
    steps = ((none, width), (height, none), (none, -width), (-height, none))
    return start, torch.stack([torch.stack(step, -1) for step in steps], 2)


def border_align_forward(input, boxes, output, argmax_idx, pool_size):
    """Write the maximum along each border of each box into `output`.

    Args:
        input: shape (B, 4 * C, H, W), the features of the top, left, bottom and right
            borders.
        boxes: shape (B, K, 4), (x1, y1, x2, y2) on the feature map.
        output: shape (B, C, K, 4), written.
        argmax_idx: shape (B, C, K, 4), written: the number of the point on the border
            that has the maximum.
        pool_size: steps along a border; it has one point more.
    """
    B, _, H, W = input.shape
    K = boxes.size(1)
    features = widen(input).unflatten(1, (4, -1))
    start, step = _borders(boxes.to(features.dtype), pool_size)
    images = torch.arange(B, device=input.device)[:, None, None] * (H * W)
    counts = torch.full((B * K,), 4, device=input.device)
    for border in range(4):
        maps = features[:, border].contiguous(memory_format=torch.channels_last)
        best, places = None, None
        for i in range(pool_size + 1):
            y, x = (start[:, :, border] + i * step[:, :, border]).unbind(-1)
            positions, weights = bilinear(y, x, H, W)  # (B, K, 4)
            positions = positions + images
            values = pool_pixels(maps, positions, weights, counts)
            if best is None:
                best, places = values, torch.zeros_like(values, dtype=torch.int)
                continue
            places = torch.where(values > best, i, places)
            best = torch.maximum(best, values)
        output[..., border] = best.view(B, K, -1).mT
        argmax_idx[..., border] = places.view(B, K, -1).mT


def border_align_backward(grad_output, boxes, argmax_idx, grad_input, pool_size):
    """Write the gradient of the features; see `border_align_forward`."""
    B, channels, H, W = grad_input.shape
    C = channels // 4
    grad = widen(grad_output)
    start, step = _borders(boxes.to(grad.dtype), pool_size)
    points = start[:, None] + argmax_idx[..., None] * step[:, None]  # (B, C, K, 4, 2)
    positions, weights = bilinear(*points.unbind(-1), H, W)
    planes = torch.arange(B * channels, device=grad.device).view(B, 4, C)
    planes = planes.permute(0, 2, 1)[:, :, None, :, None]
    positions = positions + planes * (H * W)
    gradient = grad.new_zeros(grad_input.numel())
    gradient.index_add_(0, positions.flatten(), (weights * grad[..., None]).flatten())
    grad_input.copy_(gradient.view_as(grad_input))


def _cubic(points, t):
    """Return points of Bezier curves, shape (N, T, 2), from (N, 4, 2) and (T,)."""
    s = 1 - t
    basis = torch.stack([s**3, 3 * t * s**2, 3 * t**2 * s, t**3], 1)  # (T, 4)
    return (basis[:, :, None] * points[:, None]).sum(2)


def _bezier_align(features, beziers, bins, spatial_scale, ratio, aligned):
    """Return the pooled bins, shape (N, C, *bins); see `bezier_align_forward`."""
    beziers = beziers.to(features.dtype)
    points = (beziers[:, 1:] * spatial_scale).view(-1, 8, 2)
    upper, lower = points[:, :4], points[:, 4:].flip(1)
    v, u = (torch.arange(n, device=points.device).to(points) / n for n in bins)
    upper_line, lower_line = _cubic(upper, u)[:, None], _cubic(lower, u)[:, None]
    centers = torch.lerp(upper_line, lower_line, v[:, None, None])  # (N, *bins, 2)
    centers = (centers - (0.5 if aligned else 0.0)).flatten(0, 2)
    chords = [(line[:, 0] - line[:, 3]).abs() for line in (upper, lower)]
    sides = torch.maximum(*chords).clamp(min=0 if aligned else 1).flip(1)
    size = (sides / sides.new_tensor(bins)).repeat_interleave(bins[0] * bins[1], 0)
    corner = centers.flip(1) - size / 2
    down, right = size * size.new_tensor([1, 0]), size * size.new_tensor([0, 1])
    images = beziers[:, 0].long().repeat_interleave(bins[0] * bins[1])
    samples = samples_per_bin(size, ratio)
    pooled = pool_bins(features, images, corner, down, right, samples, ratio)
    return boxes_first(pooled, bins)


def bezier_align_forward(
    input,
    rois,
    output,
    aligned_height,
    aligned_width,
    spatial_scale,
    sampling_ratio,
    aligned,
):
    """Average the samples of each bin between two Bezier curves into `output`.

    Args:
        input: shape (B, C, H, W).
        rois: shape (N, 17): image index, four control points (x, y) of the upper curve,
            and four of the lower one from its other end.
        output: shape (N, C, aligned_height, aligned_width), written.
        spatial_scale: pixels of the feature map per pixel of the image.
        sampling_ratio: samples per bin and axis; 0 takes about one per pixel.
        aligned: whether pixel centers are at half-integers. If not, bins cover at
            least one pixel along each axis.
    """
    bins = aligned_height, aligned_width
    settings = bins, spatial_scale, sampling_ratio, aligned
    output.copy_(_bezier_align(widen(input), rois, *settings))


def bezier_align_backward(
    grad_output,
    rois,
    grad_input,
    aligned_height,
    aligned_width,
    spatial_scale,
    sampling_ratio,
    aligned,
):
    """Write the gradient of the feature map; see `bezier_align_forward`."""
    bins = aligned_height, aligned_width
    settings = bins, spatial_scale, sampling_ratio, aligned
    write_gradient(
        lambda features: _bezier_align(features, rois, *settings),
        grad_output,
        grad_input,
    )
