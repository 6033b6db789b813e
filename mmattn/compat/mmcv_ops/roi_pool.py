"""RoIPool and its deformable form, with the arguments of mmcv's operators.

A bin is a bag of pixels: those it touches, or the four around each of its samples. So
PyTorch's embedding bags compute all bins at once, whatever their numbers of pixels.

Boxes are (x1, y1, x2, y2), points (y, x). Shapes: B batch, C channels, H W height and
width of a feature map, N boxes, R bins of all boxes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from . import widen

NO_ARGMAX = -1


def _starts_of(counts: Tensor) -> Tensor:
    """Return where each run starts among runs of the given lengths."""
    return counts.cumsum(0) - counts


def _cells_of(sides: Tensor):
    """Return the cells of grids: grid, row and column of each, and counts by grid.

    Args:
        sides: rows and columns of each grid, shape (R, 2), integers.
    """
    counts = sides.prod(1)
    grid = torch.repeat_interleave(counts)
    place = torch.arange(grid.numel(), device=sides.device) - _starts_of(counts)[grid]
    width = sides[grid, 1]
    return grid, place // width, place % width, counts


def _bin_edges(start: Tensor, sides: Tensor, bins: tuple[int, int]):
    """Return low and high edges of all bins, (y, x), shape (N, *bins, 2) each.

    Args:
        start: y and x of the boxes' first corner, shape (N, 2).
        sides: height and width of the boxes, shape (N, 2).
    """
    axes = (torch.arange(n, device=sides.device) for n in bins)
    low = torch.cartesian_prod(*axes).view(*bins, 2).to(sides.dtype)
    size = (sides / sides.new_tensor(bins))[:, None, None]
    start = start[:, None, None]
    return start + low * size, start + (low + 1) * size


def _table(features: Tensor) -> Tensor:
    """Return the pixels of maps (B, C, H, W) as rows (B * H * W, C)."""
    return features.permute(0, 2, 3, 1).reshape(-1, features.size(1))


def _boxes_first(pooled: Tensor, bins: tuple[int, int]) -> Tensor:
    """Return bins of shape (N * number of bins, C) as (N, C, *bins)."""
    return pooled.unflatten(0, (-1, *bins)).permute(0, 3, 1, 2)


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
    bag, row, column, counts = _cells_of((last - first).clamp(min=0))
    row, column = row + first[bag, 0], column + first[bag, 1]
    image = rois[:, 0].long()[bag // (bins[0] * bins[1])]
    positions = (image * size[0] + row) * size[1] + column
    table = _table(features)
    if positions.numel():
        values, _, _, best = torch.embedding_bag(
            table, positions, _starts_of(counts), mode=2
        )
        best = best % size.numel()
    else:
        values = best = table.new_zeros(len(counts), table.size(1))
    is_empty = counts[:, None] == 0
    output.copy_(_boxes_first(values.masked_fill(is_empty, 0), bins))
    argmax.copy_(_boxes_first(best.masked_fill(is_empty, NO_ARGMAX), bins))


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


def _bilinear(y: Tensor, x: Tensor, height: int, width: int):
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


def _deform_roi_pool(
    features, rois, offset, *, pooled_height, pooled_width, spatial_scale,
    sampling_ratio, gamma,
):  # fmt: skip
    """Return the pooled bins, shape (N, C, *bins); see `deform_roi_pool_forward`.

    A bin without samples, or one that is not finite, is 0.
    """
    bins, (H, W) = (pooled_height, pooled_width), features.shape[2:]
    rois = rois.to(features.dtype)
    start, end = (rois[:, [2, 1, 4, 3]] * spatial_scale - 0.5).split(2, 1)
    low, high = _bin_edges(start, end - start, bins)
    size, low = (high - low).flatten(0, 2), low.flatten(0, 2)  # (R, 2)
    if offset.numel():
        shift = offset.to(features.dtype).flatten(2).mT.flip(2)  # (N, bins, 2), y and x
        low = low + (gamma * (end - start)[:, None] * shift).flatten(0, 1)
    samples = size.detach().nan_to_num(posinf=0).ceil().clamp(min=0).long()
    if sampling_ratio > 0:
        samples = torch.full_like(samples, sampling_ratio)
    bin, row, column, counts = _cells_of(samples)
    step = size / samples
    points = low[bin] + (torch.stack([row, column], 1) + 0.5) * step[bin]
    positions, weights = _bilinear(*points.unbind(1), H, W)  # (samples, 4)
    images = rois[:, 0].long().repeat_interleave(bins[0] * bins[1])[bin]
    pooled = F.embedding_bag(
        (positions + images[:, None] * (H * W)).flatten(),
        _table(features),
        _starts_of(4 * counts),
        mode='sum',
        per_sample_weights=(weights / counts[bin, None]).to(features.dtype).flatten(),
    )
    return _boxes_first(pooled, bins)


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
        grad = grad_output.to(output.dtype)
        found = torch.autograd.grad(output, inputs, grad, materialize_grads=True)
    for buffer, gradient in zip((grad_input, grad_offset), found, strict=True):
        buffer.copy_(gradient)
