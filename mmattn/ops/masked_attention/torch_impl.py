"""Masked attention in PyTorch on CPUs: hard masks by tiles, soft ones by rows.

`decomposition.py` has the tiles, and a piece is all tokens of some heads. A piece of a
soft mask is some rows of the definition's scores.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common import pieces
from ..common.checks import device_reason
from ..common.pieces import Piece
from ..common.precision import compute_dtype
from .decomposition import (
    DENSE_TOKENS,
    keys_of_a_tile,
    masked_attention_decomposition,
)
from .reference import attention_under_mask

ALL = slice(None)
# Up to so many tokens autograd of the reference is faster than a backward that computes
# the forward again.
REFERENCE_TOKENS = DENSE_TOKENS


def unsupported(q: Tensor, *tensors: Tensor | None) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


def prefers_reference(q: Tensor, *tensors: Tensor | None, needs_grad: bool) -> bool:
    """Return whether a forward and a backward of the reference are faster."""
    return needs_grad and q.shape[1] <= REFERENCE_TOKENS


def forward(q, k, v, bias, alpha, **stencil):
    """Return the output, and no statistics."""
    tensors = q, k, v, bias, alpha
    out = torch.empty(q.shape, dtype=q.dtype)
    pieces.forward(_pieces(q, alpha, stencil), tensors, out)
    return out, q.new_empty(0, dtype=compute_dtype(q.dtype))


def backward(grad, out, lse, q, k, v, bias, alpha, **stencil):
    """Return the gradients of q, k, v, bias and alpha."""
    return pieces.backward(_pieces(q, alpha, stencil), (q, k, v, bias, alpha), grad)


def _pieces(q: Tensor, alpha: Tensor | None, stencil: dict) -> Iterator[Piece]:
    B, N, M, _ = q.shape
    if alpha is None:
        attend = partial(masked_attention_decomposition, **stencil)
        elements = N * keys_of_a_tile(N, stencil['kernel_size'])
        for images, heads in pieces.split(B, M, elements=elements):
            part = images, ALL, heads
            yield Piece(attend, part, (part, part, part, heads, heads))
        return
    for images, heads, rows in pieces.split(B, M, N, elements=N):
        attend = partial(_attend_softly, _mask(rows, **stencil))
        part, keys = (images, rows, heads), (images, ALL, heads)
        yield Piece(attend, part, (part, keys, keys, heads, heads))


def _attend_softly(mask, q, k, v, bias, alpha):
    return attention_under_mask(q, k, v, mask, bias, alpha)


def _mask(rows: slice, *, grid, kernel_size, num_special, mask_fill) -> Tensor:
    """Return some rows of `neighborhood_mask`, without the others."""
    patches = torch.arange(grid[0] * grid[1])
    first, last = (max(i - num_special, 0) for i in (rows.start, rows.stop))
    near = [
        (x[first:last, None] - x).abs() <= kernel_size // 2
        for x in (patches // grid[1], patches % grid[1])
    ]
    num_special_rows = rows.stop - rows.start - (last - first)
    return F.pad(near[0] & near[1], (num_special, 0, num_special_rows, 0), value=True)
