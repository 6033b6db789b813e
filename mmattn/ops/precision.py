"""Dtypes that operators compute in, and what autocast does to their arguments."""

import functools
import inspect
from collections.abc import Callable

import torch

from .backend import is_autocast_on


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the arithmetic: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def cast_under_autocast(count: int) -> Callable[[Callable], Callable]:
    """Make an operator cast its first `count` arguments to autocast's dtype.

    The operator itself then runs with autocast disabled.
    """

    def decorate(function):
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def operator(*args, **kwargs):
            device_type = (args[0] if args else kwargs[names[0]]).device.type
            if not is_autocast_on(device_type):
                return function(*args, **kwargs)
            dtype = torch.get_autocast_dtype(device_type)
            args = [x.to(dtype) if i < count else x for i, x in enumerate(args)]
            for name in names[len(args) : count]:
                kwargs[name] = kwargs[name].to(dtype)
            with torch.autocast(device_type, enabled=False):
                return function(*args, **kwargs)

        return operator

    return decorate
