"""Choice of the implementation that runs an operator."""

import functools
import logging
import os
from collections.abc import Callable, Mapping
from types import ModuleType

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad

logger = logging.getLogger('mmattn')

BACKEND_VARIABLE = 'MMATTN_BACKEND'
REFERENCE = 'reference'


def select_backend(
    operator: str,
    requested: str | None,
    candidates: Mapping[str, ModuleType],
    *tensors: Tensor | None,
) -> str:
    """Return the name of the backend that runs a call.

    Calls that only plain PyTorch differentiates get the reference, see
    `needs_reference`.

    Args:
        operator: the operator's name, for messages.
        requested: a backend's name, or None to choose. None defaults to the environment
            variable `MMATTN_BACKEND`, if it is set.
        candidates: backends by name, fastest first. `unsupported(*tensors)` of each
            returns why it does not support the call, or None.
        tensors: the operator's tensor arguments. Only their meta data is read.

    Raises:
        ValueError: the requested backend does not exist or does not support the call.
    """
    requested = requested or os.environ.get(BACKEND_VARIABLE)
    if requested:
        if requested not in candidates:
            raise ValueError(
                f'{operator}: backend must be one of {list(candidates)}, '
                f'got {requested!r}'
            )
        if reason := candidates[requested].unsupported(*tensors):
            raise ValueError(
                f'{operator}: backend {requested!r} cannot run this call: {reason}'
            )
        if requested != REFERENCE and needs_reference(*tensors):
            raise ValueError(
                f'{operator}: backend {requested!r} supports neither forward-mode '
                f'derivatives nor torch.func.grad; use None or {REFERENCE!r}'
            )
        return requested
    if needs_reference(*tensors):
        return REFERENCE
    rejected = []
    for name, candidate in candidates.items():
        reason = candidate.unsupported(*tensors)
        if reason is None:
            if rejected and tensors[0].is_cuda:
                _log_once(f'{operator} runs on {name!r}: {"; ".join(rejected)}')
            return name
        rejected.append(f'{name}: {reason}')
    raise ValueError(f'{operator}: no backend can run this call: {rejected}')


def is_chosen(requested: str | None) -> bool:
    """Return whether `select_backend` chooses, rather than obeys a request."""
    return not (requested or os.environ.get(BACKEND_VARIABLE))


def choose_by_size(
    requested: str | None,
    backend: str,
    prefers_definition: Callable[[], bool],
    *tensors: Tensor | None,
) -> str:
    """Return the reference in place of 'cpu' where its gradients are faster.

    An explicit request, calls without gradients, and compiled graphs, which serve all
    sizes, keep the kernel.
    """
    if backend != 'cpu' or not is_chosen(requested) or not torch.is_grad_enabled():
        return backend
    requires_grad = any(x is not None and x.requires_grad for x in tensors)
    if not requires_grad or torch.compiler.is_compiling():
        return backend
    return REFERENCE if prefers_definition() else backend


def needs_reference(*tensors: Tensor | None) -> bool:
    """Return whether only plain PyTorch supports how a call is differentiated.

    PyTorch applies the formula for a kernel's gradients in ordinary reverse mode. In
    forward mode it would drop tangents silently, and the transforms of `torch.func`
    that differentiate reject the formula. `torch.func.vmap` alone runs kernels sample
    by sample.
    """
    # PyTorch has no public names for either state, but its compiler guards on both.
    if not torch._C._are_functorch_transforms_active():
        return _has_tangent(*tensors)
    # The compiler offers no stack of transforms to read.
    if _is_dual_level() or torch.compiler.is_compiling():
        return True
    return any(
        transform.key() != TransformType.Vmap for transform in get_interpreter_stack()
    )


def check_cotangent(operator: str, grad: Tensor):
    """Refuse forward-mode derivatives of a gradient that a kernel computes.

    Raises:
        ValueError: the gradient of the output carries a tangent, which PyTorch would
            drop silently.
    """
    if _has_tangent(grad):
        raise ValueError(
            f'{operator}: the gradient of the output has a forward-mode tangent, which '
            'the backward of a kernel does not support; take the gradient with '
            f'torch.func.vjp, or use the backend {REFERENCE!r}'
        )


def _has_tangent(*tensors: Tensor | None) -> bool:
    return _is_dual_level() and any(
        forward_ad.unpack_dual(x).tangent is not None for x in tensors if x is not None
    )


def _is_dual_level() -> bool:
    return forward_ad._current_level >= 0


def is_autocast_on(device_type: str) -> bool:
    """Return whether autocast is enabled; meta tensors do not support it."""
    # Not `is_autocast_available`, which the compiler of PyTorch 2.10 cannot trace.
    return device_type != 'meta' and torch.is_autocast_enabled(device_type)


@functools.cache
def _log_once(message: str):
    logger.warning(message)
