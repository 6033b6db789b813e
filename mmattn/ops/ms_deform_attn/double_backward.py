"""Second derivatives of multi-scale deformable attention, from its definition.

The kernels compute first gradients only. Gradients of those are rarely needed, so the
definition is differentiated twice instead.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .reference import ms_deform_attn_reference


def backward_reference(
    grad: Tensor,
    value: Tensor,
    points: Tensor,
    weights: Tensor,
    reference: Tensor | None = None,
    *,
    shapes: Sequence[int],
) -> tuple[Tensor, ...]:
    """Return the gradients that kernels compute, through the definition.

    Args:
        grad: gradient of the output, shape (B, Q, M, D).
        value, points, weights, reference, shapes: as in `ms_deform_attn_reference`.

    Returns:
        Gradients of the tensors that are not None, each in its tensor's dtype.
    """

    def attend(value, points, weights, reference=None):
        return ms_deform_attn_reference(
            value, points, weights, reference, shapes=shapes
        )

    tensors = [x for x in (value, points, weights, reference) if x is not None]
    with torch.autocast(value.device.type, enabled=False):
        return torch.func.vjp(attend, *tensors)[1](grad)


def setup_context(ctx, inputs, output):
    """Save the inputs of the operator for the backward."""
    *tensors, ctx.shapes, _ = inputs
    ctx.save_for_backward(*tensors)


def double_backward(ctx, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs of the operator for the backward."""

    def first_gradients(*tensors):
        return backward_reference(*tensors, shapes=ctx.shapes)

    saved = ctx.saved_tensors
    tensors = [x for x in saved if x is not None]
    with torch.autocast(tensors[0].device.type, enabled=False):
        pull = torch.func.vjp(first_gradients, *tensors)[1]
        grads = pull(cotangents[: len(tensors) - 1])
    return *grads, *[None] * (len(saved) - len(grads)), None, None
