"""RoIPool and its deformable form, with the arguments of mmcv's operators.

Boxes are (x1, y1, x2, y2). Shapes: B batch, C channels, H W height and width of a
feature map, N boxes.
"""

import torch

from . import widen
from .samples import (
    bin_corners,
    boxes_first,
    gradients,
    pool_bins,
    samples_per_bin,
    starts_of,
)

NO_ARGMAX = -1


def _pixels_of(first, last):
    """Return the pixels of rectangles: rectangle, row and column of each, and counts.

    Args:
        first: first row and column, shape (R, 2), integers.
        last: row and column after the last, shape (R, 2).
    """
    sides = (last - first).clamp(min=0)
    counts = sides.prod(1)
    rectangle = torch.repeat_interleave(counts)
    place = torch.arange(rectangle.numel(), device=first.device)
    place = place - starts_of(counts)[rectangle]
    width = sides[rectangle, 1]
    row = first[rectangle, 0] + place // width
    column = first[rectangle, 1] + place % width
    return rectangle, row, column, counts


def _bin_edges(start, sides, bins):
    """Return low and high edges of all bins, (y, x), shape (N, *bins, 2) each.

    Args:
        start: y and x of the boxes' first corner, shape (N, 2).
        sides: height and width of the boxes, shape (N, 2).
    """
    low = bin_corners(bins, sides).view(*bins, 2)
    size = (sides / sides.new_tensor(bins))[:, None, None]
    start = start[:, None, None]
    return start + low * size, start + (low + 1) * size


def roi_pool_forward(
    input, rois, output, argmax, pooled_height, pooled_width, spatial_scale
):
    """Write the maximum of the pixels that each bin touches into `output`.

    Args:
        input: shape (B, C, H, W).
        rois: shape (N, 5), image index and box.
        output: shape (N, C, pooled_height, pooled_width), written; 0 for a bin without
            pixels.
        argmax: shape as `output`, written: the flat position of the maximum in its
            map, or -1. mmcv writes 0 for a box without area, whose gradient then
            reaches the first pixel.
        spatial_scale: pixels of the feature map per pixel of the image.
    """
    features = widen(input)
    rois, size = rois.to(features.dtype), features.shape[2:]
    bins = pooled_height, pooled_width
    corners = rois[:, [2, 1, 4, 3]] + rois.new_tensor([0, 0, 1, 1])
    start, end = (corners * spatial_scale).split(2, 1)
    low, high = _bin_edges(start, end - start, bins)
    limits = torch.tensor(size, device=rois.device)
    first = low.floor().long().clamp(min=0).minimum(limits)
    last = high.ceil().long().clamp(min=0).minimum(limits)
    is_box = (end > start).all(1)[:, None, None, None]
    first, last = ((edge * is_box).flatten(0, 2) for edge in (first, last))
    bag, row, column, counts = _pixels_of(first, last)
    image = rois[:, 0].long()[bag // (bins[0] * bins[1])]
    positions = (image * size[0] + row) * size[1] + column
    table = features.permute(0, 2, 3, 1).reshape(-1, features.size(1))
    if positions.numel():
        values, _, _, best = torch.embedding_bag(
            table, positions, starts_of(counts), mode=2
        )
        best = best % size.numel()
    else:
        values = best = table.new_zeros(len(counts), table.size(1))
    is_empty = counts[:, None] == 0
    output.copy_(boxes_first(values.masked_fill(is_empty, 0), bins))
    argmax.copy_(boxes_first(best.masked_fill(is_empty, NO_ARGMAX), bins))


def roi_pool_backward(
    grad_output, rois, argmax, grad_input, pooled_height, pooled_width, spatial_scale
):
    """Write the gradient of the feature map; see `roi_pool_forward`."""
    C, H, W = grad_input.shape[1:]
    grad = widen(grad_output).where(argmax != NO_ARGMAX, 0)
    planes = rois[:, 0].long()[:, None] * C + torch.arange(C, device=grad.device)
    positions = argmax.long().clamp(min=0) + planes[..., None, None] * (H * W)
    gradient = grad.new_zeros(grad_input.numel())
    gradient.index_add_(0, positions.flatten(), grad.flatten())
    grad_input.copy_(gradient.view_as(grad_input))


def _deform_roi_pool(
    features, rois, offset, *, pooled_height, pooled_width, spatial_scale,
    sampling_ratio, gamma,
):  # fmt: skip
    """Return the pooled bins, shape (N, C, *bins); see `deform_roi_pool_forward`."""
    bins, ratio = (pooled_height, pooled_width), sampling_ratio
    rois = rois.to(features.dtype)
    start, end = (rois[:, [2, 1, 4, 3]] * spatial_scale - 0.5).split(2, 1)
    low, high = _bin_edges(start, end - start, bins)
    size, low = (high - low).flatten(0, 2), low.flatten(0, 2)
    if offset.numel():
        shift = offset.to(features.dtype).flatten(2).mT.flip(2)  # (N, bins, 2), y and x
        low = low + (gamma * (end - start)[:, None] * shift).flatten(0, 1)
    images = rois[:, 0].long().repeat_interleave(bins[0] * bins[1])
    down, right = size * size.new_tensor([1, 0]), size * size.new_tensor([0, 1])
    samples = samples_per_bin(size, ratio)
    pooled = pool_bins(features, images, low, down, right, samples, ratio)
    return boxes_first(pooled, bins)


def deform_roi_pool_forward(input, rois, offset, output, **settings):
    """Average the samples of each bin, moved by the bin's offset, into `output`.

    Args:
        input: shape (B, C, H, W).
        rois: shape (N, 5), image index and box.
        offset: shape (N, 2, pooled_height, pooled_width), (x, y) in units of `gamma`
            times the box's sides; or empty.
        output: shape (N, C, pooled_height, pooled_width), written.
        settings: of the bins, `spatial_scale`, pixels of the feature map per pixel of
            the image, and `sampling_ratio`, samples per bin and axis; 0 takes about one
            per pixel.
    """
    output.copy_(_deform_roi_pool(widen(input), rois, offset, **settings))


def deform_roi_pool_backward(
    grad_output, input, rois, offset, grad_input, grad_offset, **settings
):
    """Write the gradients of features and offsets; see `deform_roi_pool_forward`.

    They are the derivatives of the output. mmcv's gradient of an offset differs for
    samples less than a pixel outside the map, whose value no longer changes with it.
    """
    with torch.enable_grad():
        inputs = [widen(t).detach().requires_grad_() for t in (input, offset)]
        output = _deform_roi_pool(inputs[0], rois, inputs[1], **settings)
        of_input, of_offset = gradients(output, inputs, grad_output)
    grad_input.copy_(of_input)
    grad_offset.copy_(of_offset)
