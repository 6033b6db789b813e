"""Deformable attention in PyTorch: the definition, some queries at a time."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ..common import pieces
from ..common.pieces import Piece
from ..common.precision import compute_dtype
from .reference import attend, query_positions, sampled_bias

ALL = slice(None)
# Autograd of the reference is faster than a backward that computes the forward again. Up
# to so many coordinates or scores of an image, what it keeps is small.
REFERENCE_ELEMENTS = 1 << 18


def unsupported(*tensors: Tensor) -> str | None:
    """Return None: PyTorch runs the definition on any device."""
    return None


def prefers_reference(q, k, v, positions, table, *, needs_grad: bool) -> bool:
    """Return whether the reference trains faster, and keeps little."""
    elements = positions.shape[1] * q.shape[1] * _elements(q, k, positions)
    return needs_grad and elements <= REFERENCE_ELEMENTS


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
    (B, N, M, _), G = q.shape, positions.shape[1]
    dtype = compute_dtype(q.dtype)
    of_all = query_positions(grid, align_corners, dtype=dtype, device=q.device)
    elements = _elements(q, k, positions)
    for images, groups, queries in pieces.split(B, G, N, elements=elements):
        heads = slice(groups.start * M // G, groups.stop * M // G)
        part, keys = (images, queries, heads), (images, ALL, heads)
        yield Piece(
            partial(_attend, of_all[queries]),
            part,
            (part, keys, keys, (images, groups), heads),
        )


def _elements(q: Tensor, k: Tensor, positions: Tensor) -> int:
    """Return the coordinates, or the scores if there are more, of a query and a group."""
    return k.shape[1] * max(2, q.shape[2] // positions.shape[1])


def _attend(queries, q, k, v, positions, table):
    return attend(q, k, v, sampled_bias(table, positions, queries))
