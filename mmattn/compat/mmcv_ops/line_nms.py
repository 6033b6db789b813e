"""NMS of lanes, with the arguments of mmcv's operator.

A lane has 77 numbers. Number 2 is its first row, from 0 to
1, number 4 its length in rows, and the last 72 its x in each row of the image.
"""

import torch

from mmattn.errors import UserError

from . import widen

LANE_ROWS = 72
LANE_SIZE = LANE_ROWS + 5


def line_nms_forward(boxes, scores, thresh, top_k):
    """Apply NMS to lanes: remove those close to a better one.

    Args:
        boxes: lanes, shape (N, 77).
        scores: shape (N,).
        thresh: remove a lane if its mean distance to a kept one, over the rows that
            both have, is below this.
        top_k: number of lanes to keep at most.

    Returns:
        indices of the kept lanes, best first, in a vector of N numbers; their number;
        and for each lane the place of the last kept lane that it is close to, counted
        from 1. It is 0 for a lane that is close to none.

    Raises:
        ValueError: lanes do not have 77 numbers.
    """
    if boxes.dim() != 2 or boxes.size(1) != LANE_SIZE:
        raise UserError(
            f'boxes must have shape (N, {LANE_SIZE}), got {tuple(boxes.shape)}'
        )
    order = scores.argsort(descending=True, stable=True)
    lanes = widen(boxes)[order]
    start = (lanes[:, 2] * (LANE_ROWS - 1) + 0.5).trunc()
    end = start + lanes[:, 4].trunc() - 1
    rows = torch.arange(LANE_ROWS, device=boxes.device)
    parents, kept = torch.zeros_like(order), []
    all_places = places = torch.arange(order.numel(), device=order.device)
    while places.numel() and len(kept) < top_k:
        best, kept = places[0], [*kept, order[places[0]]]
        first = torch.maximum(start, start[best])[:, None]
        last = torch.minimum(end, end[best]).clamp(max=LANE_ROWS - 1)[:, None]
        is_shared = (rows >= first) & (rows <= last)
        distance = (lanes[:, 5:] - lanes[best, 5:]).abs().where(is_shared, 0).sum(1)
        is_close = distance < thresh * (last - first + 1)[:, 0]
        is_close &= ((last >= first) & (first >= 0))[:, 0]
        is_close = (is_close & (all_places > best)) | (all_places == best)
        parents[order[is_close]] = len(kept)
        places = places[~is_close[places]]
    keep = torch.zeros_like(order)
    if kept:
        keep[: len(kept)] = torch.stack(kept)
    return [keep, torch.tensor(len(kept), device=keep.device), parents]
