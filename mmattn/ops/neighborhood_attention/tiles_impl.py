"""Neighborhood attention in plain PyTorch on any device: tiles over the whole map."""

from torch import Tensor

from ..precision import compute_dtype
from .tiles import attend_part, part_gradients


def unsupported(*tensors: Tensor) -> str | None:
    """Return None: PyTorch runs tiles anywhere."""
    return None


def forward(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and no statistics, which the backward computes again."""
    dtype = compute_dtype(q.dtype)
    return attend_part(q, k, v, rpb, 'map'), q.new_empty(0, dtype=dtype)


def backward(
    grad: Tensor, out: Tensor, lse: Tensor, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v and rpb."""
    return part_gradients(grad, *tensors, 'map')
