"""The bias where a step from query to query is a step in the table."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..workspace import scratch
from .torch_windows import Axis, TableWindows


class UnitStepBias:
    """Blend one window of the table for each key.

    With queries at -1, ..., 1 and a table of 2 H - 1 by 2 W - 1 numbers, all queries of
    a key lie at the same fraction of the way between two numbers.
    """

    def __init__(self, positions: Tensor, table: Tensor, axes: Sequence[Axis]):
        """Take positions (P, K, 2), tables (h, Th, Tw) and the axes y and x."""
        self.positions, self.axes = positions, axes
        sides = [len(axis.queries) + 1 for axis in axes]
        self.windows = TableWindows(table, sides)
        self.dpositions = torch.zeros_like(positions)

    def set_rows(self, rows: slice):
        """Choose the rows of queries whose bias is made next."""
        W = len(self.axes[1].queries)
        self.shape = rows.stop - rows.start, W
        points = (
            axis.points(self.positions[..., i], slice(first, first + 1))[..., 0]
            for axis, i, first in zip(self.axes, (1, 0), (rows.start, 0), strict=True)
        )
        corner, self.upper, self.lower = [], [], []
        for point in points:
            floor = point.floor()
            corner.append(floor)
            upper = (point - floor).to(self.positions.dtype)
            self.upper.append(upper[..., None, None])
            self.lower.append(1 - self.upper[-1])
        self.corners = self.windows.corners(*corner)

    def make(self, keys: slice) -> tuple[Tensor, tuple]:
        """Return the bias of some keys, (P, k, r * W), and the parts it is made of.

        The next call reuses their memory. The caller may overwrite the bias.
        """
        r, W = self.shape
        corners = self.corners[..., keys]
        _, P, k = corners.shape
        windows = self.windows.cut(corners, (r + 1, W + 1))
        windows = windows.view(P, k, r + 1, W + 1)
        fy, fx = (x[:, keys] for x in self.upper)
        lines = scratch('lines', P, k, r + 1, W, like=windows)
        torch.lerp(windows[..., :-1], windows[..., 1:], fx, out=lines)
        bias = scratch('bias', P, k, r, W, like=windows)
        torch.lerp(lines[:, :, :-1], lines[:, :, 1:], fy, out=bias)
        return bias.flatten(2), (keys, windows, lines)

    def add_gradients(self, dbias: Tensor, parts: tuple):
        """Add the gradients that follow from that of the bias made last."""
        keys, windows, lines = parts
        P, k, r, W = lines.shape
        dbias = dbias.view(P, k, r - 1, W)
        dlines = scratch('dlines', *lines.shape, like=lines)
        (fy, fx), (gy, gx) = ([x[:, keys] for x in y] for y in (self.upper, self.lower))
        slopes = scratch('slopes', *dbias.shape, like=dbias)
        torch.sub(lines[:, :, 1:], lines[:, :, :-1], out=slopes)
        dy = slopes.mul_(dbias).sum((2, 3))
        torch.mul(dbias, gy, out=dlines[:, :, :-1])
        dlines[:, :, -1] = 0
        dlines[:, :, 1:].addcmul_(dbias, fy)
        slopes = torch.sub(windows[..., 1:], windows[..., :-1], out=lines)
        dx = slopes.mul_(dlines).sum((2, 3))
        torch.mul(dlines, gx, out=windows[..., :-1])
        windows[..., -1] = 0
        windows[..., 1:].addcmul_(dlines, fx)
        self.windows.add(windows.flatten(0, 1), self.corners[..., keys])
        self.dpositions[:, keys, 0].add_(dx, alpha=self.axes[1].slope)
        self.dpositions[:, keys, 1].add_(dy, alpha=self.axes[0].slope)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of positions (P, K, 2) and tables (h, Th, Tw)."""
        return self.dpositions, self.windows.gradient()
