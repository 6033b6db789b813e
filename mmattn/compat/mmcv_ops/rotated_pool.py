"""Features in rotated boxes, with the arguments of mmcv's operators.

A rotated box is (x, y, width, height, angle). Shapes: B batch, C channels, H W height
and width of a feature map, N boxes.
"""

import math

import torch
from torch.nn import functional as F

from .deform import widen
from .samples import (
    bilinear,
    bin_corners,
    boxes_first,
    pool_bins,
    pool_pixels,
    samples_per_bin,
    write_gradient,
)


def _pool(features, rois, bins, spatial_scale, ratio, shift, min_side, clockwise):
    """Return the average of each bin's samples, shape (N, C, *bins).

    Args:
        rois: shape (N, 6), image index and rotated box.
        shift: distance that the boxes move up and left on the feature map.
        min_side: least height and width of a box.
    """
    rois = rois.to(features.dtype)
    center_x, center_y, width, height = (rois[:, 1:5] * spatial_scale).unbind(1)
    sides = torch.stack([height, width], 1).clamp(min=min_side)
    size = sides / sides.new_tensor(bins)  # of a bin
    angle = -rois[:, 5] if clockwise else rois[:, 5]
    cos, sin = angle.cos(), angle.sin()
    down = torch.stack([cos, sin], 1) * size[:, :1]
    right = torch.stack([-sin, cos], 1) * size[:, 1:]
    # Bins are counted from the center of the box.
    place = bin_corners(bins, sides) - sides.new_tensor(bins) / 2
    center = torch.stack([center_y, center_x], 1) - shift
    corner = (
        center[:, None] + place[:, :1] * down[:, None] + place[:, 1:] * right[:, None]
    )
    number = len(place)
    down, right, size, images = (
        value.repeat_interleave(number, 0)
        for value in (down, right, size, rois[:, 0].long())
    )
    samples = samples_per_bin(size, ratio)
    corner = corner.flatten(0, 1)
    pooled = pool_bins(features, images, corner, down, right, samples, ratio)
    return boxes_first(pooled, bins)


def _roi_align_rotated(rois, bins, spatial_scale, ratio, aligned, clockwise):
    """Return RoIAlign in the given boxes as a function of the feature map."""
    shift, min_side = (0.5, 0) if aligned else (0, 1)
    settings = bins, spatial_scale, ratio, shift, min_side, clockwise
    return lambda features: _pool(features, rois, *settings)


def roi_align_rotated_forward(
    input,
    rois,
    output,
    pooled_height,
    pooled_width,
    spatial_scale,
    sampling_ratio,
    aligned,
    clockwise,
):
    """Average the samples of each bin of rotated boxes, written to `output`.

    Args:
        input: shape (B, C, H, W).
        rois: shape (N, 6), image index and rotated box.
        output: shape (N, C, pooled_height, pooled_width), written.
        spatial_scale: pixels of the feature map per pixel of the image.
        sampling_ratio: samples per bin and axis; 0 takes about one per pixel.
        aligned: whether pixel centers are at half-integers. If not, boxes have at
            least one pixel along each side.
        clockwise: whether angles turn the other way.
    """
    settings = spatial_scale, sampling_ratio, aligned, clockwise
    pool = _roi_align_rotated(rois, (pooled_height, pooled_width), *settings)
    output.copy_(pool(widen(input)))


def roi_align_rotated_backward(
    grad_output,
    rois,
    grad_input,
    pooled_height,
    pooled_width,
    spatial_scale,
    sampling_ratio,
    aligned,
    clockwise,
):
    """Write the gradient of the feature map; see `roi_align_rotated_forward`."""
    settings = spatial_scale, sampling_ratio, aligned, clockwise
    pool = _roi_align_rotated(rois, (pooled_height, pooled_width), *settings)
    write_gradient(pool, grad_output, grad_input)


def _riroi_align_rotated(rois, bins, spatial_scale, ratio, orientations, clockwise):
    """Return rotation-invariant RoIAlign as a function of the feature map."""

    def pool(features):
        pooled = _pool(features, rois, bins, spatial_scale, ratio, 0, 1, clockwise)
        turn = rois[:, 5].to(pooled.dtype) * (orientations / (2 * math.pi))
        turn = turn[:, None, None, None, None]
        first = turn.floor()
        channels = torch.arange(orientations, device=rois.device)[:, None, None]
        channels = channels - first.long()
        groups = pooled.unflatten(1, (-1, orientations))
        mixed = 0
        for move, weight in ((0, 1 - (turn - first)), (1, turn - first)):
            index = (channels + move).remainder(orientations).expand(groups.shape)
            mixed = mixed + weight * groups.gather(2, index)
        return mixed.flatten(1, 2)

    return pool


def riroi_align_rotated_forward(
    features,
    rois,
    output,
    pooled_height,
    pooled_width,
    spatial_scale,
    num_samples,
    num_orientations,
    clockwise,
):
    """Pool rotated boxes, and turn their orientation channels back by the angle.

    Args:
        features: shape (B, C * num_orientations, H, W).
        rois: shape (N, 6), image index and rotated box.
        output: shape (N, C * num_orientations, pooled_height, pooled_width), written.
        num_samples: samples per bin and axis; 0 takes about one per pixel.
        num_orientations: channels of a group, at angles from 0 to a full turn. An
            angle between two of them mixes both.
    """
    settings = spatial_scale, num_samples, num_orientations, clockwise
    pool = _riroi_align_rotated(rois, (pooled_height, pooled_width), *settings)
    output.copy_(pool(widen(features)))


def riroi_align_rotated_backward(
    grad_output,
    rois,
    grad_input,
    pooled_height,
    pooled_width,
    spatial_scale,
    num_samples,
    num_orientations,
    clockwise,
):
    """Write the gradient of the feature map; see `riroi_align_rotated_forward`."""
    settings = spatial_scale, num_samples, num_orientations, clockwise
    pool = _riroi_align_rotated(rois, (pooled_height, pooled_width), *settings)
    write_gradient(pool, grad_output, grad_input)


def _rotated_feature_align(features, boxes, spatial_scale, points):
    """Return the features plus those at the points of each pixel's box."""
    B, C, H, W = features.shape
    boxes = boxes.to(features.dtype).view(B, H * W, 5)
    y, x, width, height = (boxes[..., :4] * spatial_scale).unbind(2)
    cos, sin = boxes[..., 4].cos() / 2, boxes[..., 4].sin() / 2
    wide_x, wide_y, high_x, high_y = (
        cos * width,
        sin * width,
        -sin * height,
        cos * height,
    )
    turns = ((0, 0), (1, 1), (-1, 1), (-1, -1), (1, -1))[:points]
    y = torch.stack([y + i * wide_y + j * high_y for i, j in turns], 2)
    x = torch.stack([x + i * wide_x + j * high_x for i, j in turns], 2)
    positions, weights = bilinear(y, x, H, W)  # (B, H * W, points, 4)
    images = torch.arange(B, device=boxes.device)[:, None, None, None]
    positions = positions + images * (H * W)
    counts = torch.full((B * H * W,), 4 * points, device=boxes.device)
    aligned = pool_pixels(features, positions, weights, counts)
    return features + aligned.view(B, H, W, C).permute(0, 3, 1, 2)


def rotated_feature_align_forward(features, best_bboxes, output, spatial_scale, points):
    """Add to each pixel the features at points of its box, written to `output`.

    Args:
        features: shape (B, C, H, W).
        best_bboxes: shape (B, H, W, 5), rotated boxes with y before x, as in mmcv.
        output: shape (B, C, H, W), written.
        spatial_scale: pixels of the feature map per pixel of the image.
        points: 1 for the center, 5 for the center and the corners.
    """
    settings = best_bboxes, spatial_scale, points
    output.copy_(_rotated_feature_align(widen(features), *settings))


def rotated_feature_align_backward(
    top_grad, best_bboxes, bottom_grad, spatial_scale, points
):
    """Write the gradient of the features; see `rotated_feature_align_forward`."""
    settings = best_bboxes, spatial_scale, points
    write_gradient(
        lambda features: _rotated_feature_align(features, *settings),
        top_grad,
        bottom_grad,
    )


def _turned_entries(indices):
    """Return the place of each weight in all turned filters, (R * entries,)."""
    places = indices.flatten(0, 2).T.long() - 1  # (R, entries)
    turns = torch.arange(len(places), device=places.device)[:, None]
    return (places + turns * places.size(1)).flatten()


def active_rotated_filter_forward(input, indices, output):
    """Write filters turned by each of R angles into `output`.

    Args:
        input: shape (O, I, orientations, kH, kW).
        indices: shape (orientations, kH, kW, R), the place from 1 of each weight in
            the filter after each turn. Places that no weight takes become 0.
        output: shape (O * R, I * orientations, kH, kW), written.
    """
    filters, turns = input.size(0), indices.size(3)
    weights = F.pad(input.flatten(2).flatten(0, 1), (0, 1))  # a last entry of 0
    entries = weights.size(1) - 1
    sources = torch.full((turns * entries,), entries, device=input.device)
    own = torch.arange(entries, device=input.device).repeat(turns)
    sources.index_copy_(0, _turned_entries(indices), own)
    turned = weights.index_select(1, sources).view(filters, -1, turns, entries)
    output.view(filters, turns, -1, entries).copy_(turned.transpose(1, 2))


def active_rotated_filter_backward(grad_out, indices, grad_in):
    """Write the gradient of the filters; see `active_rotated_filter_forward`."""
    filters, turns = grad_in.size(0), indices.size(3)
    turned = grad_out.reshape(filters, turns, grad_in.size(1), -1).transpose(1, 2)
    weights = turned.flatten(2).flatten(0, 1)
    weights = weights.index_select(1, _turned_entries(indices))
    grad_in.copy_(weights.view(*grad_in.shape[:2], turns, -1).sum(2).view_as(grad_in))
