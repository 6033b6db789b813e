"""Ask an operator for its FLOPs, and for rows of its attention matrices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Flops:
    """Rules that count an operator, as PyTorch's `register_flop_formula` takes them.

    A rule takes the shapes of the tensors, then the settings. A multiply-accumulate is
    two FLOPs.

    Attributes:
        forward: the rule of the forward. A hard-masked head counts the pairs inside its
            mask.
        backward: the rule of the backward, which also takes the gradient of the output
            and the saved outputs, before the tensors. None counts two products for each
            one of the forward.
        dense: the forward's rule with all N x N pairs; None if there are no masks.
        kind: 'products', 'transforms' (with Fourier transforms), or 'samplings', whose
            products are of numbers, not of matrices.
    """

    forward: Callable[..., int]
    backward: Callable[..., int] | None = None
    dense: Callable[..., int] | None = None
    kind: str = 'products'


@dataclass(frozen=True)
class Attention:
    """The attention of one call.

    Attributes:
        shape: B, N and M.
        rows: takes indices of queries, and returns their rows of the first image's
            attention matrices, shape (len(rows), M, N).
        is_softmax: whether rows are a softmax; others may have both signs.
        grid: number of special tokens, which come first, and height and width of the
            others. None where the caller's map has the grid.
    """

    shape: Sequence[int]
    rows: Callable[[Sequence[int]], Tensor]
    is_softmax: bool = True
    grid: Sequence[int] | None = None
