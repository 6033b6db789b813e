"""The part of a table that the queries of some rows read for a key."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .cpu_blocks import Scratch


class Axis(NamedTuple):
    """One side of a table, and the queries along that side of the grid.

    Places are in float64: in float32, those in a large table have few digits left.
    """

    queries: Tensor  # normalized, (n,), float64
    size: int

    @property
    def slope(self) -> float:
        """Derivative of a point by the position of its key."""
        return (1 - self.size) / 4

    def points(self, positions: Tensor, queries: slice) -> Tensor:
        """Where the table is read for keys at positions (P, K), (P, K, n), float64."""
        displacement = (self.queries[queries] - positions[..., None].double()) / 2
        return (displacement + 1) * ((self.size - 1) / 2)

    def length(self, count: int) -> int:
        """Of a window with the taps of `count` queries in a row."""
        first, last = self.queries[0].item(), self.queries[-1].item()
        step = (last - first) / max(len(self.queries) - 1, 1) * -self.slope
        return math.floor((count - 1) * step + 1e-3) + 3


class TableWindows:
    """Cuts windows out of tables, and adds up the gradients of windows.

    Around a table are margins of zeros, in which windows lie that are not in the table.
    """

    def __init__(self, table: Tensor, longest: Sequence[int], scratch: Scratch):
        """table: shape (h, Th, Tw); longest: sides of the largest window."""
        self.sizes, self.longest, self.scratch = table.shape[1:], longest, scratch
        y, x = longest
        self.padded = F.pad(table, (x, x, y, y))
        self.dpadded = torch.zeros_like(self.padded)

    def corners(self, y: Tensor, x: Tensor) -> Tensor:
        """Plane, row and column in the padded tables, (3, P, K), of windows' corners.

        They lie at y and x, integral floats (P, K). Plane p has table p % h.
        """
        y, x = (
            corner.clamp(-margin, size).nan_to_num().long() + margin
            for corner, margin, size in zip(
                (y, x), self.longest, self.sizes, strict=True
            )
        )
        planes = torch.arange(len(y), device=y.device) % max(len(self.padded), 1)
        return torch.stack([planes[:, None].expand_as(y), y, x])

    def cut(self, corners: Tensor, shape: Sequence[int]) -> Tensor:
        """Windows (P * k, *shape), until others are cut."""
        h, height, width = self.padded.shape
        r, w = shape
        overlapping = self.padded.as_strided(
            (h, height - r + 1, width - w + 1, r, w),
            (height * width, width, 1, width, 1),
        )
        windows = self.scratch.take('windows', corners[0].numel(), r, w)
        index = list(corners.flatten(1))
        return torch.ops.aten.index.Tensor_out(overlapping, index, out=windows)

    def add(self, dwindows: Tensor, corners: Tensor):
        """Gradients (P * k, r, w) of windows that were cut there."""
        _, height, width = self.padded.shape
        planes, y, x = corners.flatten(1)
        first = (planes * height + y) * width + x
        rows, columns = (
            torch.arange(side, device=first.device) for side in dwindows.shape[1:]
        )
        inside = (rows[:, None] * width + columns).flatten()
        index = self.scratch.take('index', len(first), len(inside), dtype=torch.long)
        torch.add(first[:, None], inside, out=index)
        self.dpadded.flatten().scatter_add_(0, index.flatten(), dwindows.flatten())

    def gradient(self) -> Tensor:
        """(h, Th, Tw)."""
        y, x = self.longest
        return self.dpadded[:, y : y + self.sizes[0], x : x + self.sizes[1]]
