"""Dtypes that operators compute in, and what autocast does to their arguments."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the arithmetic: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def is_autocast_on(device_type: str) -> bool:
    """Return whether autocast is enabled; meta tensors do not support it."""
    # Not `is_autocast_available`, which the compiler of PyTorch 2.10 cannot trace.
    return device_type != 'meta' and torch.is_autocast_enabled(device_type)


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context that disables autocast on the device of a tensor."""
    device_type = x.device.type
    if is_autocast_on(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def cast_under_autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return tensors in autocast's dtype where it is enabled, otherwise as they are."""
    device_type = tensors[0].device.type
    if not is_autocast_on(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(None if x is None else x.to(dtype) for x in tensors)
