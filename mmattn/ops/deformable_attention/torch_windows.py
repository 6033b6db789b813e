"""Windows of a table: the part that some rows of queries read for a key."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..workspace import scratch


class Axis(NamedTuple):
    """Describe one side of a table and the queries along that side of the grid.

    Points are in float64, since float32 leaves few digits for a fraction in a large
    table.
    """

    queries: Tensor  # normalized, (n,), float64
    size: int

    @property
    def slope(self) -> float:
        """Return the derivative of a point by the position of its key."""
        return (1 - self.size) / 4

    def points(self, positions: Tensor, queries: slice) -> Tensor:
        """Return where keys at positions (P, K) read the table, (P, K, n), float64."""
        displacement = (self.queries[queries] - positions[..., None].double()) / 2
        return (displacement + 1) * ((self.size - 1) / 2)

    def length(self, count: int) -> int:
        """Return the length of a window with the taps of `count` adjacent queries."""
        first, last = self.queries[0].item(), self.queries[-1].item()
        step = (last - first) / max(len(self.queries) - 1, 1) * -self.slope
        return math.floor((count - 1) * step + 1e-3) + 3


class TableWindows:
    """Cut windows out of tables, and add up the gradients of windows.

    A table has margins of zeros, which hold the windows that lie outside it.
    """

    def __init__(self, table: Tensor, longest: Sequence[int]):
        """Take tables (h, Th, Tw) and the sides of the largest window."""
        self.sizes, self.longest = table.shape[1:], longest
        y, x = longest
        self.padded = F.pad(table, (x, x, y, y))
        self.dpadded = torch.zeros_like(self.padded)

    def corners(self, y: Tensor, x: Tensor) -> Tensor:
        """Return plane, row and column of windows in the padded tables, (3, P, K).

        The windows begin at y and x, integral floats (P, K). Plane p reads table p % h.
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
        """Return windows (P * k, *shape); the next call reuses their memory."""
        h, height, width = self.padded.shape
        r, w = shape
        overlapping = self.padded.as_strided(
            (h, height - r + 1, width - w + 1, r, w),
            (height * width, width, 1, width, 1),
        )
        windows = scratch('windows', corners[0].numel(), r, w, like=self.padded)
        index = list(corners.flatten(1))
        return torch.ops.aten.index.Tensor_out(overlapping, index, out=windows)

    def add(self, dwindows: Tensor, corners: Tensor):
        """Add gradients (P * k, r, w) of the windows that were cut at `corners`."""
        _, height, width = self.padded.shape
        planes, y, x = corners.flatten(1)
        first = (planes * height + y) * width + x
        rows, columns = (
            torch.arange(side, device=first.device) for side in dwindows.shape[1:]
        )
        inside = (rows[:, None] * width + columns).flatten()
        index = scratch('index', len(first), len(inside), like=first)
        torch.add(first[:, None], inside, out=index)
        self.dpadded.flatten().scatter_add_(0, index.flatten(), dwindows.flatten())

    def gradient(self) -> Tensor:
        """Return the gradient of the tables, (h, Th, Tw)."""
        y, x = self.longest
        return self.dpadded[:, y : y + self.sizes[0], x : x + self.sizes[1]]
