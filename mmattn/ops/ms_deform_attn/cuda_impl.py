"""Multi-scale deformable attention in CUDA C++, through the compiled extension.

A group of lanes takes a query and a head. It computes the places and weights of samples
once, in shared memory, and each lane reads 16 bytes of channels of each pixel. Atomic
additions sum the gradient of values in float32, in no fixed order, so this backend does
not support gradients with deterministic algorithms.
"""

import torch

from ..common import extension
from ..common.checks import device_reason, dtype_reason

OPERATORS = torch.ops.mmattn_extension
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_LEVELS = 16
MAX_SAMPLES = 1023
MAX_PIXELS = 2**31 - 1


def unsupported(value, points, weights, reference) -> str | None:
    """Return why this backend does not support a call, or None."""
    if reason := device_reason(value, 'cuda') or extension.CUDA_UNAVAILABLE:
        return reason
    tensors = [x for x in (value, points, weights, reference) if x is not None]
    if reason := dtype_reason(DTYPES, *tensors):
        return reason
    if value.shape[1] > MAX_PIXELS:
        return f'supports at most {MAX_PIXELS} pixels, got {value.shape[1]}'
    L, P = points.shape[3:5]
    if L > MAX_LEVELS or L * P > MAX_SAMPLES:
        return (
            f'supports at most {MAX_LEVELS} levels and {MAX_SAMPLES} points of a query, '
            f'got {L} levels of {P} points'
        )
    wants_grad = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if wants_grad and torch.are_deterministic_algorithms_enabled():
        return 'sums the gradient of value in no fixed order'
    return None


def forward(value, points, weights, reference, *, shapes):
    """Return the output (B, Q, M, D)."""
    B, _, M, D = value.shape
    out = torch.empty(B, points.shape[1], M, D, dtype=value.dtype, device=value.device)
    if out.numel():
        tensors = _contiguous(value, points, weights, reference)
        OPERATORS.ms_deform_attn_forward(*tensors, shapes, out)
    return out


def backward(grad, value, points, weights, reference, *, shapes):
    """Return the gradients of value, points, weights and reference, or None for it."""
    if torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(
            "ms_deform_attn: backend 'cuda' supports no deterministic gradient of value, "
            'and deterministic algorithms were enabled after the forward'
        )
    B, S, M, D = value.shape
    Q, device = points.shape[1], value.device
    grad_value = torch.zeros(B, S, M, D, dtype=torch.float32, device=device)
    grad_points, grad_weights = (
        torch.empty(x.shape, dtype=x.dtype, device=device) for x in (points, weights)
    )
    grad_reference = None
    if reference is not None:
        grad_reference = torch.empty(
            B, Q, M, *reference.shape[2:], dtype=torch.float32, device=device
        )
    if B * Q:
        tensors = _contiguous(value, points, weights, reference)
        OPERATORS.ms_deform_attn_backward(
            grad.contiguous(), *tensors, shapes,
            grad_value, grad_points, grad_weights, grad_reference,
        )  # fmt: skip
    grad_value = grad_value.to(value.dtype)
    if reference is None:
        return grad_value, grad_points, grad_weights, None
    grad_reference = grad_reference.sum(2).to(reference.dtype)
    return grad_value, grad_points, grad_weights, grad_reference


def _contiguous(value, *others):
    if value.stride(3) != 1:
        value = value.contiguous()
    return value, *(x if x is None else x.contiguous() for x in others)
