"""Blocks of queries, their samples, and the table of pixels that they read."""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..chunks import slices
from .torch_windows import Levels, Windows

LARGEST_INT32 = torch.iinfo(torch.int32).max
make_levels = functools.lru_cache(maxsize=32)(Levels)


class Block(NamedTuple):
    """Hold R of the queries."""

    queries: slice
    windows: Windows
    points: Tensor  # (R, M, S, 2), as the caller gave them
    attention: Tensor  # (R, M, S), after the softmax
    scale: Tensor  # pixels per unit of points, broadcast to (2, R, M, S)


class Problem(NamedTuple):
    """Hold all heads of all images, or one head of an image."""

    table: Tensor  # (rows, D), in the dtype of the arithmetic
    points: Tensor  # (R, M, S, 2)
    weights: Tensor  # (R, M, S)
    reference: Tensor | None  # (R, L or 1, 2 or 4)
    levels: Levels
    queries_of_image: int

    @classmethod
    def of_all_heads(cls, value, points, weights, reference, shapes):
        """Return the problem of all heads of all images."""
        B, pixels, M, D = value.shape
        _, Q, _, _, P, _ = points.shape
        dtype = torch.promote_types(value.dtype, torch.float32)
        rows = B * pixels * M
        return cls(
            value.to(dtype).reshape(rows, D),
            points.flatten(0, 1).flatten(2, 3),
            weights.flatten(0, 1).flatten(2),
            None if reference is None else reference.flatten(0, 1),
            make_levels(
                tuple(shapes), heads=M, num_points=P, dtype=dtype, index=index_of(rows)
            ),
            Q,
        )

    @classmethod
    def of_a_head(cls, value, points, weights, reference, shapes, image, head):
        """Return the problem of one head of one image."""
        _, pixels, _, D = value.shape
        _, Q, _, _, P, _ = points.shape
        dtype = torch.promote_types(value.dtype, torch.float32)
        only = slice(head, head + 1)
        return cls(
            value[image, :, head].to(dtype).contiguous(),
            points[image, :, only].flatten(2, 3),
            weights[image, :, only].flatten(2),
            None if reference is None else reference[image],
            make_levels(
                tuple(shapes),
                heads=1,
                num_points=P,
                dtype=dtype,
                index=index_of(pixels),
            ),
            Q,
        )

    def blocks(self, samples: int) -> Iterator[Block]:
        """Yield blocks of about this many samples."""
        R, M, S = self.weights.shape
        for queries in slices(R, M * S, samples):
            points, attention = self.points[queries], self.weights[queries]
            attention = attention.to(self.table.dtype)
            reference = None
            if self.reference is not None:
                reference = self.reference[queries].to(self.table.dtype)
                attention = attention.softmax(-1)
            scale, shift = self.levels.placement(reference)
            rows = self._image_rows(queries)
            windows = Windows(self.levels, points, scale, shift, rows)
            yield Block(queries, windows, points, attention, scale)

    def _image_rows(self, queries: slice) -> Tensor | None:
        """Return where each query's image begins in the table, shape (R, 1, 1)."""
        images = len(self.points) // self.queries_of_image
        if images == 1:
            return None
        index = self.levels.first.dtype
        image = torch.arange(queries.start, queries.stop) // self.queries_of_image
        return (image * (len(self.table) // images)).to(index)[:, None, None]


def index_of(rows: int) -> torch.dtype:
    """Return the smaller dtype that counts rows of a table."""
    return torch.int32 if rows <= LARGEST_INT32 else torch.int64
