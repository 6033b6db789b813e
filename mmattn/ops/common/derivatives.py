"""Kinds of derivatives that a kernel's formula for gradients does not support."""

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad

from mmattn.errors import UserError


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` is being applied.

    PyTorch has no public name for this, but its compiler guards on it.
    """
    return torch._C._are_functorch_transforms_active()


def needs_reference(*tensors: Tensor | None) -> bool:
    """Return whether only plain PyTorch supports how a call is differentiated.

    PyTorch applies the formula for a kernel's gradients in ordinary reverse mode. In
    forward mode it would drop tangents silently, and the transforms of `torch.func`
    that differentiate reject the formula. `torch.func.vmap` alone runs kernels sample
    by sample.
    """
    if not is_transformed():
        return _has_tangent(*tensors)
    # The compiler offers no stack of transforms to read.
    if torch.compiler.is_compiling():
        return True
    transforms = get_interpreter_stack()
    if any(transform.key() != TransformType.Vmap for transform in transforms):
        return True
    return _has_tangent(*tensors)


def runs_eagerly(*tensors: Tensor | None) -> bool:
    """Return whether a call is only run, and at most recorded by reverse mode.

    Compilers, `torch.jit.trace`, transforms of `torch.func` and forward mode follow
    operations of PyTorch, and not an `autograd.Function` or a write into a buffer.
    """
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or is_transformed()
        or _has_tangent(*tensors)
    )


def check_cotangent(operator: str, grad: Tensor):
    """Refuse forward-mode derivatives of a gradient that a kernel computes.

    Raises:
        ValueError: the gradient of the output carries a tangent, which PyTorch would
            drop silently.
    """
    if _has_tangent(grad):
        raise UserError(
            f'{operator}: the gradient of the output has a forward-mode tangent, which '
            'the backward of a kernel does not support; take the gradient with '
            "torch.func.vjp, or use the backend 'reference'"
        )


def _has_tangent(*tensors: Tensor | None) -> bool:
    for x in tensors:
        if x is not None and forward_ad.unpack_dual(x).tangent is not None:
            return True
    return False
