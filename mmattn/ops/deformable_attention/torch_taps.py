"""The bias as a product of three matrices, for a table of any size."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..workspace import scratch
from .torch_windows import Axis, TableWindows

ALIGNMENT = 8  # products are slow where the length of a row is no multiple


class TapBias:
    """Compute `bias[r, c] = Y_s[r] @ window_s @ X_s[c]` of each key s.

    A row of Y_s or X_s holds the two weights of a linear interpolation, and zeros.
    """

    def __init__(self, positions: Tensor, table: Tensor, axes: Sequence[Axis]):
        """Take positions (P, K, 2), tables (h, Th, Tw) and the axes y and x."""
        self.positions, self.axes = positions, axes
        sides = [_length(axis, len(axis.queries)) for axis in axes]
        self.windows = TableWindows(table, sides)
        self.dpositions = torch.zeros_like(positions)

    def set_rows(self, rows: slice):
        """Choose the rows of queries whose bias is made next."""
        columns = slice(0, len(self.axes[1].queries))
        corner, self.shape, self.slots, self.upper = [], [], [], []
        for axis, i, queries in zip(self.axes, (1, 0), (rows, columns), strict=True):
            points = axis.points(self.positions[..., i], queries)
            floor = points.floor()
            side = _length(axis, queries.stop - queries.start)
            slots = (floor - floor[..., :1]).nan_to_num().clamp_(0, side - 2)
            corner.append(floor[..., 0])
            self.shape.append(side)
            self.slots.append(slots.long()[..., None])
            self.upper.append((points - floor).to(self.positions.dtype)[..., None])
        self.corners = self.windows.corners(*corner)

    def _hats(self, axis: int, keys: slice) -> Tensor:
        """Return Y or X, (P * k, n, side)."""
        slots, upper = (x[axis][:, keys] for x in (self.slots, self.upper))
        shape = *slots.shape[:3], self.shape[axis]
        hats = scratch(f'hats {axis}', *shape, like=upper).zero_()
        hats.scatter_(-1, slots, 1 - upper).scatter_(-1, slots + 1, upper)
        return hats.flatten(0, 1)

    def make(self, keys: slice) -> tuple[Tensor, tuple]:
        """Return the bias of some keys, (P, k, r * W), and the parts it is made of.

        The next call reuses their memory. The caller may overwrite the bias.
        """
        Y, X = (self._hats(axis, keys) for axis in range(2))
        corners = self.corners[..., keys]
        windows = self.windows.cut(corners, self.shape)
        (n, r, _), (_, W, w) = Y.shape, X.shape
        lines = torch.bmm(Y, windows, out=scratch('lines', n, r, w, like=Y))
        bias = torch.bmm(lines, X.mT, out=scratch('bias', n, r, W, like=Y))
        return bias.view(*corners.shape[1:], r * W), (keys, windows, lines, Y, X)

    def add_gradients(self, dbias: Tensor, parts: tuple):
        """Add the gradients that follow from that of the bias made last."""
        keys, windows, lines, Y, X = parts
        dbias = dbias.view(len(Y), Y.shape[1], X.shape[1])
        dX = torch.bmm(dbias.mT, lines, out=scratch('dhats 1', *X.shape, like=X))
        dlines = torch.bmm(dbias, X, out=lines)
        dY = torch.bmm(dlines, windows.mT, out=scratch('dhats 0', *Y.shape, like=Y))
        torch.bmm(Y.mT, dlines, out=windows)
        self.windows.add(windows, self.corners[..., keys])
        for axis, dhats, i in ((0, dY, 1), (1, dX, 0)):
            slots = self.slots[axis][:, keys]
            dhats = dhats.view(*slots.shape[:3], -1)
            slopes = dhats.gather(-1, slots + 1).sub_(dhats.gather(-1, slots))
            dpositions = self.dpositions[:, keys, i]
            dpositions.add_(slopes.sum((2, 3)), alpha=self.axes[axis].slope)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of positions (P, K, 2) and tables (h, Th, Tw)."""
        return self.dpositions, self.windows.gradient()


def _length(axis: Axis, count: int) -> int:
    length = axis.length(count)
    return length + -length % ALIGNMENT
