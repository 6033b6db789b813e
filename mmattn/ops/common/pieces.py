"""Operators in plain PyTorch, a piece of the output at a time.

No tensor is much larger than a piece needs. Nothing is kept for the backward, which
computes each piece again and lets PyTorch differentiate it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .precision import compute_dtype

# What the dispatcher excludes outside of operators. Inside it excludes autograd, too,
# and no public function takes that back.
with torch.inference_mode(False):
    EXCLUDED = torch._C._dispatch_tls_local_exclude_set()
ELEMENTS = 1 << 20  # of a tensor of a piece, if an item has no more: 4 MiB in float32


class Piece(NamedTuple):
    """Describe a part of the output.

    Attributes:
        function: returns the part of the output, given parts of the tensors.
        output: index of the part in the output.
        inputs: index of the part in each tensor.
    """

    function: Callable[..., Tensor]
    output: Any
    inputs: Sequence[Any]

    def take(self, tensors: Sequence[Tensor | None], dtype: torch.dtype) -> list:
        """Return the parts of tensors in a dtype; None stays None."""
        pairs = zip(tensors, self.inputs, strict=True)
        return [None if x is None else x[index].to(dtype) for x, index in pairs]


def split(*axes: int, elements: int) -> Iterator[tuple[slice, ...]]:
    """Yield slices of axes that together are everything, the last axis longest.

    Args:
        axes: lengths of the axes.
        elements: number of elements of an item of the last axis.
    """
    slices = []
    for length in reversed(axes):
        most = max(1, ELEMENTS // max(1, elements))
        starts = range(0, length, most)
        slices.append([slice(i, min(i + most, length)) for i in starts])
        elements *= length
    return product(*reversed(slices))


def forward(pieces: Iterable[Piece], tensors: Sequence[Tensor | None], out: Tensor):
    """Write the output, which is computed in float32, or in float64 for float64."""
    for piece in pieces:
        parts = piece.take(tensors, compute_dtype(out.dtype))
        out[piece.output] = piece.function(*parts)


def backward(
    pieces: Iterable[Piece], tensors: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradient of each tensor, None where it is None.

    Args:
        pieces: pieces of the forward.
        tensors: tensors of the forward.
        grad: gradient of the output.
    """
    dtype = compute_dtype(grad.dtype)
    totals = [
        None if x is None else torch.zeros(x.shape, dtype=dtype, device=x.device)
        for x in tensors
    ]
    for piece in pieces:
        parts = piece.take(tensors, dtype)
        shares = iter(
            _differentiate(piece.function, parts, grad[piece.output].to(dtype))
        )
        for total, index in zip(totals, piece.inputs, strict=True):
            if total is not None:
                total[index] += next(shares)
    pairs = zip(tensors, totals, strict=True)
    return tuple(None if x is None else total.to(x.dtype) for x, total in pairs)


def _differentiate(
    function: Callable[..., Tensor], tensors: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of the tensors that are not None."""
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, EXCLUDED), torch.enable_grad():
        leaves = [None if x is None else x.detach().requires_grad_() for x in tensors]
        given = [x for x in leaves if x is not None]
        return torch.autograd.grad(function(*leaves), given, grad)
