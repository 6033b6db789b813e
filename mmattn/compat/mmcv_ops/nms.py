"""NMS, soft-NMS and the groups of NMS, with the arguments of mmcv's operators.

Boxes are (x1, y1, x2, y2).
"""

import numpy as np
import torch
import torchvision  # noqa: F401  defines torch.ops.torchvision

from . import widen


def nms(boxes, scores, iou_threshold, offset):
    """Return the indices of the kept boxes, highest score first, ties in order.

    A pixel offset of 1 adds 1 to each width and height of boxes and intersections. This
    equals moving x2 and y2 by 1.

    Args:
        boxes: shape (N, 4).
        scores: shape (N,).
        iou_threshold: remove a box whose overlap with a kept one is above this.
        offset: 0 or 1.
    """
    boxes = widen(boxes)
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    # torchvision compares in float64, where 0.6 is below the float32 overlap 3/5.
    threshold = torch.tensor(iou_threshold, dtype=boxes.dtype).item()
    return torch.ops.torchvision.nms(boxes, scores.to(boxes.dtype), threshold)


def _box_table(boxes, scores, offset) -> np.ndarray:
    """Return a copy of x1, y1, x2, y2, area and score of the boxes, shape (6, N)."""
    boxes = widen(boxes.detach())
    size = boxes[:, 2:] - boxes[:, :2] + offset
    columns = *boxes.unbind(1), size.prod(1), scores.detach().to(boxes.dtype)
    return torch.stack(columns).cpu().numpy()


def _overlaps(first, others, offset) -> np.ndarray:
    """Return the IoU of one column of a box table with others; NaN for areas of 0."""
    width = np.minimum(first[2], others[2]) - np.maximum(first[0], others[0]) + offset
    height = np.minimum(first[3], others[3]) - np.maximum(first[1], others[1]) + offset
    intersection = width.clip(min=0) * height.clip(min=0)
    with np.errstate(divide='ignore', invalid='ignore'):
        return intersection / (first[4] + others[4] - intersection)


def softnms(boxes, scores, dets, iou_threshold, sigma, min_score, method, offset):
    """Apply soft-NMS: reduce the score of boxes that overlap a better one.

    The order is mmcv's, also for equal scores: the best of the remaining boxes changes
    places with the first of them, and the last box takes the place of one whose score
    falls below `min_score`.

    Args:
        boxes: shape (N, 4), on the CPU.
        scores: shape (N,), on the CPU.
        dets: shape (N, 5); boxes and new scores are written to its first rows.
        iou_threshold: overlap from which methods 0 and 1 reduce the score.
        sigma: width of method 2.
        min_score: remove boxes below this score.
        method: factor on the score. 0 is the factor 0, as in NMS, 1 is 1 - IoU, and 2
            is exp(-IoU^2 / sigma).
        offset: 0 or 1, added to widths and heights.

    Returns:
        indices of the boxes that remain, in the order of `dets`.
    """
    table = _box_table(boxes, scores, offset)
    indices = np.arange(table.shape[1])
    first = 0
    while first < indices.size:
        best = first + table[5, first:].argmax()
        table[:, [first, best]] = table[:, [best, first]]
        indices[[first, best]] = indices[[best, first]]
        others = table[:, first + 1 :]
        overlap = _overlaps(table[:, first], others, offset)
        if method == 2:
            others[5] *= np.exp(-(overlap**2) / sigma)
        else:
            factor = 0 if method == 0 else 1 - overlap
            others[5] *= np.where(overlap >= iou_threshold, factor, 1)
        first += 1
        stays = ~(others[5] < min_score)
        number = first + stays.sum()
        if number < indices.size:
            places = first + np.flatnonzero(~stays)
            places = places[places < number]
            fillers = first + np.flatnonzero(stays)[::-1][: places.size]
            table[:, places] = table[:, fillers]
            indices[places] = indices[fillers]
            table, indices = table[:, :number], indices[:number]
    dets[: indices.size] = torch.from_numpy(table[[0, 1, 2, 3, 5]].T)
    return torch.from_numpy(indices)


def nms_match(dets, iou_threshold) -> list[list[int]]:
    """Group each box that NMS keeps with those it suppresses, ordered by score.

    Unlike `nms`, an overlap of exactly the threshold suppresses.

    Args:
        dets: shape (N, 5), boxes and scores, on the CPU.
        iou_threshold: overlap from which a box joins a better one's group.
    """
    table = _box_table(dets[:, :4], dets[:, 4], offset=0)
    remaining = np.argsort(-table[5], kind='stable')
    groups = []
    while remaining.size:
        kept, others = remaining[0], remaining[1:]
        joins = _overlaps(table[:, kept], table[:, others], 0) >= iou_threshold
        groups.append([int(kept), *others[joins].tolist()])
        remaining = others[~joins]
    return groups
