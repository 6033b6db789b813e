"""The part of a table that the queries of some rows read for a key."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .cpu_blocks import Scratch


class Axis(NamedTuple):
    """One side of a table, and the queries along that side of the grid."""

    queries: Tensor  # normalised, (n,)
    size: int

    @property
    def slope(self) -> float:
        """Derivative of a point by the position of its key."""
        return (1 - self.size) / 4

    def points(self, positions: Tensor, queries: slice) -> Tensor:
        """Where the table is read for keys at positions (P, K), (P, K, n)."""
        displacement = (self.queries[queries] - positions[..., None]) / 2
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
        """Indices (P, K, 1) of windows with corners at y and x, integral floats (P, K).

        Plane p has table p % h.
        """
        y, x = (
            corner.clamp(-margin, size).nan_to_num().int() + margin
            for corner, margin, size in zip(
                (y, x), self.longest, self.sizes, strict=True
            )
        )
        h, height, width = self.padded.shape
        planes = torch.arange(len(y), dtype=torch.int32, device=y.device) % max(h, 1)
        return ((planes[:, None] * height + y) * width + x)[..., None]

    def inside(self, shape: Sequence[int]) -> Tensor:
        """Indices in a window, from that of its corner on."""
        y, x = (
            torch.arange(side, dtype=torch.int32, device=self.padded.device)
            for side in shape
        )
        return (y[:, None] * self.padded.shape[2] + x).flatten()

    def cut(self, corners: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Windows (P * k, n), and their indices, until others are cut."""
        P, k, _ = corners.shape
        index = self.scratch.take('index', P, k, len(inside), dtype=torch.int32)
        index = torch.add(corners, inside, out=index).flatten()
        windows = self.scratch.take('windows', len(index))
        torch.index_select(self.padded.flatten(), 0, index, out=windows)
        return windows.view(P * k, -1), index

    def add(self, dwindows: Tensor, index: Tensor):
        self.dpadded.flatten().index_add_(0, index, dwindows.flatten())

    def gradient(self) -> Tensor:
        """(h, Th, Tw)."""
        y, x = self.longest
        return self.dpadded[:, y : y + self.sizes[0], x : x + self.sizes[1]]
