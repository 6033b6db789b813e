"""Neighborhood attention in PyTorch, by the tiles of `decomposition.py`.

A piece is all queries of some heads.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..common import pieces
from ..common.pieces import Piece
from ..common.precision import compute_dtype
from .decomposition import neighborhood_attention_decomposition

ALL = slice(None)


def unsupported(*tensors: Tensor) -> str | None:
    """Return None: PyTorch runs tiles on any device."""
    return None


def forward(q, k, v, rpb):
    """Return the output, and no statistics."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    pieces.forward(_pieces(q, rpb), (q, k, v, rpb), out)
    return out, q.new_empty(0, dtype=compute_dtype(q.dtype))


def backward(grad, out, lse, q, k, v, rpb):
    """Return the gradients of q, k, v and rpb."""
    return pieces.backward(_pieces(q, rpb), (q, k, v, rpb), grad)


def _pieces(q: Tensor, rpb: Tensor) -> Iterator[Piece]:
    B, H, W, M, _ = q.shape
    keys_of_a_tile = rpb.shape[1] ** 2
    for images, heads in pieces.split(B, M, elements=H * W * keys_of_a_tile):
        part = images, ALL, ALL, heads
        yield Piece(
            neighborhood_attention_decomposition, part, (part, part, part, heads)
        )
