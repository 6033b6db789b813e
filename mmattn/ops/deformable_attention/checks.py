"""Checks of what both operators are given."""

import torch
from torch import Tensor


def check_dims(name: str, tensor: Tensor, count: int) -> torch.Size:
    """The shape of a floating-point tensor with `count` dimensions."""
    if tensor.dim() != count or not tensor.is_floating_point():
        raise ValueError(
            f'{name} must be a floating-point tensor of {count} dimensions, got '
            f'{tuple(tensor.shape)} of {tensor.dtype}'
        )
    return tensor.shape
