"""The gradient of value, in which many samples add to the same rows.

Sorted by row, the terms of a row are a bag of rows of the output's gradient.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .reference import levels_of
from .torch_products import weighted_sums

SMALL_INDEX = torch.iinfo(torch.int16).max
# PyTorch sorts at least this many integers by radix, and fewer by comparisons. More
# than `FEW` of them are sorted faster after padding to this number.
RADIX_SORTED = 1 << 15
FEW = 1 << 12


def sum_pixels(grad: Tensor, rows: Tensor, counts: Tensor, num_rows: int) -> Tensor:
    """Return the gradient of all rows of the table, shape (num_rows, D).

    Args:
        grad: gradient of the output, shape (R, D).
        rows: indices of the pixels that a row of `grad` adds to, shape (R, count).
        counts: weights of these pixels, attention included, shape (R, count).
    """
    sources, order, bags = _sort(rows, num_rows)
    counts = counts.flatten().index_select(0, order)
    return weighted_sums(grad, sources, bags, counts)


def sum_windows(
    grad: Tensor, rows: Tensor, counts: Tensor, shapes: Sequence[int]
) -> Tensor:
    """Return the gradient of all pixels of a head, shape (pixels, D).

    The bag of a pixel holds the samples whose window begins there. Each of the window's
    four pixels has weights of its own, which gives four sums of the same bags, each
    moved to its pixel.

    Args:
        grad: gradient of the output, shape (Q, D).
        rows: indices of the pixels where windows begin, shape (Q, S).
        counts: weights of the four pixels, attention included, shape (4, Q, S).
        shapes: heights and widths of the levels in turn.
    """
    maps = levels_of(shapes)
    sources, order, bags = _sort(rows, sum(H * W for H, W in maps))
    total = None
    for corner, weights in enumerate(counts.flatten(1)):
        weights = weights.index_select(0, order)
        sums = weighted_sums(grad, sources, bags, weights)
        if total is None:
            total = sums
            continue
        first = 0
        for H, W in maps:
            move = corner % 2 * (W > 1) + corner // 2 * W * (H > 1)
            last = first + H * W
            total[first + move : last] += sums[first : last - move]
            first = last
    return total


def _sort(rows: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort rows; return their first indices, their order and where each row begins."""
    (R, count), index = rows.shape, rows.dtype
    keys = rows.flatten()
    if num_rows <= SMALL_INDEX:  # a radix sort takes a pass for each byte
        keys = keys.to(torch.int16)
    if FEW < len(keys) < RADIX_SORTED:
        last = torch.iinfo(keys.dtype).max
        keys = F.pad(keys, (0, RADIX_SORTED - len(keys)), value=last)
    keys, order = (x[: rows.numel()] for x in keys.sort(stable=True))
    begins = torch._convert_indices_from_coo_to_csr(
        keys.to(index), num_rows, out_int32=index == torch.int32
    )
    sources = torch.arange(R, dtype=index).repeat_interleave(count)
    return sources.index_select(0, order), order, begins[:-1]
