"""Overlaps and NMS of rotated boxes and of quadrilaterals, as mmcv's operators.

A rotated box is (x, y, width, height, angle): center, sides, and the angle in radians
from the x axis to the width, positive towards the y axis. A quadrilateral is
(x1, y1, ..., x4, y4), convex.
"""

import math

import torch

from .deform import widen
from .polygons import (
    area,
    intersection_with_quadrilaterals,
    intersection_with_rectangles,
)

PAIRS_AT_ONCE = 2**14
"""Pairs per step, so that temporary tensors stay in the cache."""

MIN_AREA = 1e-14
"""Area below which mmcv sets every overlap to 0."""

BOXES_AT_ONCE = 128
"""Boxes per step of NMS."""

SAME_CORNER = 1e-6
"""Distance, relative to the polygon, below which two corners are one."""


def _ratio(intersection, first_area, second_area, mode):
    """Return intersection over union in mode 0, over the first area in mode 1."""
    whole = first_area if mode else first_area + second_area - intersection
    has_area = (first_area >= MIN_AREA) & (second_area >= MIN_AREA)
    return torch.where(has_area, intersection / whole, 0)


def _rotated_corners(x, y, width, height, angle):
    """Return x and y of the corners of rotated boxes, each of shape (4, ...)."""
    cos, sin = angle.cos() / 2, angle.sin() / 2
    wide_x, wide_y, high_x, high_y = (
        cos * width,
        sin * width,
        -sin * height,
        cos * height,
    )
    turns = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    corners_x = torch.stack([x + i * wide_x + j * high_x for i, j in turns])
    corners_y = torch.stack([y + i * wide_y + j * high_y for i, j in turns])
    return corners_x, corners_y


def _corners(boxes):
    """Return x and y of the corners of either shape, each of shape (4, ...)."""
    if boxes.size(-1) == 5:
        return _rotated_corners(*boxes.unbind(-1))
    return boxes[..., ::2].movedim(-1, 0), boxes[..., 1::2].movedim(-1, 0)


def _rotated_overlaps(first, second, mode):
    """Return the overlaps of boxes of shape (..., 5), which broadcast."""
    x1, y1, w1, h1, a1 = first.unbind(-1)
    x2, y2, w2, h2, a2 = second.unbind(-1)
    # The second box in the frame of the first, whose corner is the origin.
    x, y, cos, sin = x2 - x1, y2 - y1, a1.cos(), a1.sin()
    center_x, center_y = x * cos + y * sin + w1 / 2, y * cos - x * sin + h1 / 2
    corners = _rotated_corners(center_x, center_y, w2, h2, a2 - a1)
    inside = intersection_with_rectangles(*corners, w1, h1)
    return _ratio(inside, w1 * h1, w2 * h2, mode)


def _quadrilateral_overlaps(first, second, mode):
    """Return the overlaps of quadrilaterals of shape (..., 8), which broadcast."""
    corners = [_corners(boxes) for boxes in (first, second)]
    inside = intersection_with_quadrilaterals(*corners[1], *corners[0])
    return _ratio(inside, area(*corners[0]), area(*corners[1]), mode)


def _write_overlaps(overlaps, boxes1, boxes2, ious, mode, aligned):
    """Write the overlaps of all pairs, or of aligned pairs, into `ious`, flat."""
    first, second = widen(boxes1), widen(boxes2)
    if aligned:
        ious.copy_(overlaps(first, second, mode))
        return
    table = ious.view(len(first), len(second))
    rows = max(PAIRS_AT_ONCE // max(len(second), 1), 1)
    pieces = zip(first.split(rows), table.split(rows), strict=True)
    for piece, written in pieces:
        written.copy_(overlaps(piece[:, None], second[None], mode))


def box_iou_rotated(boxes1, boxes2, ious, mode_flag, aligned):
    """Write the overlaps of rotated boxes into `ious`.

    They hold where edges of two boxes coincide, and mmcv may then lose corners.

    Args:
        boxes1: shape (N, 5).
        boxes2: shape (M, 5).
        ious: shape (N * M,), or (N,) if aligned, written.
        mode_flag: 0 for intersection over union, 1 for intersection over the first
            area.
        aligned: whether to compare pairs only, which needs N = M.
    """
    _write_overlaps(_rotated_overlaps, boxes1, boxes2, ious, mode_flag, aligned)


def box_iou_quadri(boxes1, boxes2, ious, mode_flag, aligned):
    """Write the overlaps of quadrilaterals of shape (N, 8); see `box_iou_rotated`.

    mmcv looks for corners inside the other quadrilateral as if both were rectangles, so
    its overlaps of other shapes differ from these, which are exact.
    """
    _write_overlaps(_quadrilateral_overlaps, boxes1, boxes2, ious, mode_flag, aligned)


def _nms(overlaps, boxes, order, iou_threshold, labels):
    """Return the indices of the kept boxes, best first.

    Boxes are taken in steps. A step compares its boxes with all that remain, where the
    upright rectangles around them meet. It then decides about its boxes one after the
    other, without more arithmetic.
    """
    boxes, kept = widen(boxes), []
    corners = torch.stack(_corners(boxes), -1)
    low, high = corners.amin(0), corners.amax(0)
    if boxes.dtype != torch.float64:
        iou_threshold = torch.tensor(iou_threshold, dtype=boxes.dtype).item()
    while order.numel():
        step = order[:BOXES_AT_ONCE]
        meets = (low[step, None] <= high[order]) & (low[order] <= high[step, None])
        first, second = meets.all(2).nonzero().unbind(1)
        removes = torch.full(meets.shape[:2], iou_threshold < 0, device=boxes.device)
        pairs = boxes[step[first]], boxes[order[second]]
        removes[first, second] = overlaps(*pairs, 0) > iou_threshold
        if labels is not None:
            removes &= labels[step, None] == labels[order]
        own = removes[:, : len(step)].cpu().numpy()
        stays = torch.ones(len(step), dtype=torch.bool)
        decided = stays.numpy()
        for i in range(len(step)):
            if decided[i]:
                decided[i + 1 :] &= ~own[i, i + 1 :]
        stays = stays.to(order.device)
        kept.append(step[stays])
        order = order[len(step) :][~removes[stays, len(step) :].any(0)]
    return torch.cat(kept) if kept else order


def nms_rotated(dets, scores, order, dets_sorted, labels, iou_threshold, multi_label):
    """Return the indices of the kept rotated boxes, best first.

    A box is removed if its overlap with a kept one is above the threshold. In mmcv, the
    CPU also removes at exactly the threshold and ignores labels, unlike the GPU.

    Args:
        dets: shape (N, 5), or (N, 6) with the label last.
        scores: shape (N,); ignored, as `order` has their order.
        order: indices from the best box to the worst.
        dets_sorted: ignored.
        labels: labels of the boxes, or empty.
        iou_threshold: remove a box whose overlap with a kept one is above this.
        multi_label: whether to compare boxes of the same label only.
    """
    labels = dets[:, 5] if multi_label else None
    return _nms(_rotated_overlaps, dets[:, :5], order, iou_threshold, labels)


def nms_quadri(dets, scores, order, dets_sorted, iou_threshold, multi_label):
    """Return the indices of the kept quadrilaterals; see `nms_rotated`."""
    labels = dets[:, 8] if multi_label else None
    return _nms(_quadrilateral_overlaps, dets[:, :8], order, iou_threshold, labels)


def points_in_polygons_forward(points, polygons, output):
    """Write 1 where a point is inside a quadrilateral, and 0 elsewhere.

    A ray from the point along x crosses the edges an odd number of times. A point on
    the border may be counted either way, as in mmcv.

    Args:
        points: shape (N, 2).
        polygons: shape (M, 8).
        output: shape (N, M), written.
    """
    x, y = (column[:, None] for column in widen(points).unbind(1))
    corners = widen(polygons).unflatten(1, (4, 2))
    is_inside = torch.zeros_like(output, dtype=torch.bool)
    for i in range(4):
        (x1, y1), (x2, y2) = corners[:, i - 1].unbind(1), corners[:, i].unbind(1)
        crosses = (y1 < y) != (y2 < y)
        is_inside ^= crosses & (x2 + (y - y2) * (x1 - x2) / (y1 - y2) > x)
    output.copy_(is_inside)


def diff_iou_rotated_sort_vertices_forward(vertices, mask, num_valid):
    """Return the order of the corners of intersections around their centers.

    Corners that coincide with another count once.

    Args:
        vertices: shape (B, N, 24, 2), relative to the centers: the corners of two
            boxes, and the points where edges cross.
        mask: shape (B, N, 24), which vertices are corners of the intersection.
        num_valid: shape (B, N), how many; ignored, as the mask says it.

    Returns:
        indices, shape (B, N, 9): the corners in order, the first again, and then an
        index that is no corner. With fewer than 3 corners, all are that index.
    """
    x, y = vertices.detach().unbind(3)
    distance = [(v[..., None] - v[..., None, :]).abs() for v in (x, y)]
    size = vertices.detach().abs().amax((2, 3))[..., None, None]
    is_same = torch.maximum(*distance) <= SAME_CORNER * size
    is_earlier = torch.ones_like(is_same[0, 0]).tril(-1)
    mask = mask.bool()
    is_corner = mask & ~(is_same & is_earlier & mask[..., None, :]).any(3)
    angle = torch.atan2(y, x).remainder(2 * math.pi)
    order = angle.masked_fill(~is_corner, math.inf).argsort(stable=True, dim=2)
    number = is_corner.sum(2, keepdim=True)
    # Crossings begin at 8. At most 8 of the 16 are corners.
    absent = 8 + mask[..., 8:].int().argmin(2, keepdim=True)
    places = torch.arange(9, device=vertices.device)
    result = torch.where(places < number, order[..., :9], absent)
    result = torch.where((places == number), order[..., :1], result)
    return torch.where(number < 3, absent, result).int()
