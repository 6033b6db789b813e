"""Places of samples in a table of pixels, and weights of the four pixels around."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .reference import levels_of

OUTSIDE = -2.0  # a place outside every map, in pixels


class Levels:
    """Describe the maps by numbers for each of the S = L * P samples of a query.

    The table has a row for each pixel and head, with heads innermost.
    """

    def __init__(
        self,
        shapes: Sequence[int],
        *,
        heads: int,
        num_points: int,
        dtype: torch.dtype,
        index: torch.dtype,
    ):
        maps = torch.tensor(levels_of(shapes))  # (L, 2)
        firsts = maps.prod(1).cumsum(0) - maps.prod(1)
        H, W, firsts = (
            torch.cat([maps, firsts[:, None]], 1).repeat_interleave(num_points, 0).mT
        )
        sizes = torch.stack([W, H])
        self.heads, self.num_points = heads, num_points
        self.sizes = sizes.to(dtype)[:, None, None]  # (2, 1, 1, S)
        self.last = (self.sizes - 2).clamp_min_(0)  # where a window may begin
        # The second pixel of a window has no weight where a side has only one.
        is_thin = sizes == 1
        self.thick = (~is_thin).to(dtype)[:, None, None] if is_thin.any() else None
        self.stride = (W * heads).to(index)  # from line to line
        self.first = (firsts * heads + torch.arange(heads)[:, None]).to(index)  # (M, S)
        x, y = ~is_thin * torch.stack([torch.ones_like(W), W]) * heads
        self.corners = torch.stack([0 * x, x, y, x + y]).to(index)  # (4, S)

    def placement(self, reference: Tensor | None) -> tuple[Tensor, Tensor | float]:
        """Return scale and shift from points to places in pixels, (2, R or 1, 1, S).

        The center of a pixel is at its index.
        """
        if reference is None:
            return self.sizes, -0.5
        reference = reference.movedim(-1, 0)  # (2 or 4, R, L or 1)
        if reference.shape[2] > 1:
            reference = reference.repeat_interleave(self.num_points, 2)
        reference = reference[:, :, None]
        shift = (reference[:2] * self.sizes).sub_(0.5)
        if len(reference) == 2:
            return torch.ones_like(self.sizes), shift
        return reference[2:] * (self.sizes / (2 * self.num_points)), shift


class Windows:
    """Describe the 2 x 2 pixels that each of (R, M, S) samples reads.

    A window begins at the pixel left of and above the sample, or at the nearest pixel
    that keeps the window in the map. Pixel i of a side has the weight
    max(0, 1 - |x - i|), which is right for samples between the window and the zeros
    outside, too.

    Attributes:
        rows: indices of the first pixels in the table, shape (R, M, S).
        near, far: weights of the first and second pixel along x and y, shape
            (2, R, M, S).
    """

    def __init__(
        self,
        levels: Levels,
        points: Tensor,
        scale: Tensor,
        shift: Tensor | float,
        image_rows: Tensor | None,
    ):
        """Place samples at `points * scale + shift`.

        Args:
            points: shape (R, M, S, 2), of any dtype.
            scale, shift: result of `Levels.placement`.
            image_rows: where each query's image begins in the table, shape (R, 1, 1).
        """
        xy = scale.new_empty(2, *points.shape[:-1]).copy_(points.movedim(-1, 0))
        xy.mul_(scale).add_(shift).nan_to_num_(OUTSIDE, OUTSIDE, OUTSIDE)
        begin = torch.minimum(xy.clamp_min(0), levels.last).floor_()
        self.levels, self.place = levels, xy.sub_(begin)  # in the window
        x, y = begin.to(levels.first.dtype)
        self.rows = y.mul_(levels.stride).add_(x, alpha=levels.heads)
        self.rows.add_(levels.first)
        if image_rows is not None:
            self.rows.add_(image_rows)
        self.near = _hat(self.place.abs())
        self.far = _hat((self.place - 1).abs_())
        if levels.thick is not None:
            self.far.mul_(levels.thick)

    def slopes(self) -> tuple[Tensor, Tensor]:
        """Return the derivatives of `near` and `far`, one-sided at a pixel.

        They are those to the right of a pixel, or below it.
        """
        cell = self.place.floor()  # 0 in the window, -1 before it, 1 after it
        steps = [(cell + i).clamp_(0, 1) for i in (-1, 0, 1, 2)]
        near = steps[3].sub_(steps[2], alpha=2).add_(steps[1])  # 1, -1, 0 from -1 on
        far = steps[2].sub_(steps[1], alpha=2).add_(steps[0])  # 0, 1, -1
        if self.levels.thick is not None:
            far.mul_(self.levels.thick)
        return near, far

    def table_rows(self) -> Tensor:
        """Return the indices of all four pixels, shape (R, M, 4, S)."""
        R, M, S = self.rows.shape
        rows = self.rows.new_empty(R, M, 4, S)
        for i, corner in enumerate(self.levels.corners):
            torch.add(self.rows, corner, out=rows[:, :, i])
        return rows

    def write_counts(self, attention: Tensor, out: Sequence[Tensor]):
        """Write the weights of the four pixels, times attention, each (R, M, S)."""
        for y, line in enumerate((self.near[1], self.far[1])):
            line = attention * line
            torch.mul(line, self.near[0], out=out[2 * y])
            torch.mul(line, self.far[0], out=out[2 * y + 1])


def _hat(distance: Tensor) -> Tensor:
    return distance.neg_().add_(1).clamp_min_(0)
