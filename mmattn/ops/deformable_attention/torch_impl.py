"""Deformable attention in PyTorch: the definition, some queries at a time."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from .. import pieces
from ..pieces import Piece
from ..precision import compute_dtype
from .reference import attend, query_positions, sampled_bias

ALL = slice(None)


def unsupported(*tensors: Tensor) -> str | None:
    """Return None: PyTorch runs the definition on any device."""
    return None


def forward(q, k, v, positions, table, **settings):
    """Return the output, and no statistics."""
    tensors = q, k, v, positions, table
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    pieces.forward(_pieces(q, k, positions, **settings), tensors, out)
    return out, q.new_empty(0, dtype=compute_dtype(q.dtype))


def backward(grad, out, lse, q, k, v, positions, table, **settings):
    """Return the gradients of q, k, v, positions and table."""
    tensors = q, k, v, positions, table
    return pieces.backward(_pieces(q, k, positions, **settings), tensors, grad)


def _pieces(
    q: Tensor, k: Tensor, positions: Tensor, *, grid: Sequence[int], align_corners: bool
) -> Iterator[Piece]:
    (B, N, M, _), K, G = q.shape, k.shape[1], positions.shape[1]
    of_all = query_positions(grid, align_corners, dtype=torch.float64, device=q.device)
    pairs = K * max(2, M // G)  # of coordinates, or of scores
    for images, groups, queries in pieces.split(B, G, N, elements=pairs):
        heads = slice(groups.start * M // G, groups.stop * M // G)
        part, keys = (images, queries, heads), (images, ALL, heads)
        yield Piece(
            partial(_attend, of_all[queries]),
            part,
            (part, keys, keys, (images, groups), heads),
        )


def _attend(queries, q, k, v, positions, table):
    return attend(q, k, v, sampled_bias(table, positions, queries.to(q.dtype)))
