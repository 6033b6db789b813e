"""Dtypes that operators compute in, and what autocast does to their arguments."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .derivatives import runs_eagerly


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
    return cast_together(torch.get_autocast_dtype(device_type), *tensors)


def cast_layer(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the tensors of a layer on a GPU as autocast casts them, by one kernel.

    Without gradients PyTorch casts them, and keeps weights until autocast ends.
    """
    if x.dtype != torch.float64 and torch.is_grad_enabled():
        return cast_under_autocast(x, weight, bias)
    return x, weight, bias


def cast_together(
    dtype: torch.dtype, *tensors: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return tensors in a dtype. On a GPU one kernel casts those of one other dtype."""
    others = [x for x in tensors if x is not None and x.dtype != dtype]
    if len(others) < 2 or not _fit_one_kernel(others):
        return tuple(None if x is None else x.to(dtype) for x in tensors)
    casts = iter(_CastTogether.apply(dtype, *others))
    return tuple(x if x is None or x.dtype == dtype else next(casts) for x in tensors)


def _fit_one_kernel(tensors: Sequence[Tensor]) -> bool:
    return (
        all(x.is_cuda and x.dtype == tensors[0].dtype for x in tensors)
        and runs_eagerly(*tensors)
        and not any(map(is_traceable_wrapper_subclass, tensors))  # such as quantized
    )


class _CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.source = tensors[0].dtype
        casts = [torch.empty_like(x, dtype=dtype) for x in tensors]
        torch._foreach_copy_(casts, tensors)
        return tuple(casts)

    @staticmethod
    def backward(ctx, *grads: Tensor | None):
        needed = zip(grads, ctx.needs_input_grad[1:], strict=True)
        grads = [grad if need else None for grad, need in needed]
        return None, *cast_together(ctx.source, *grads)
