"""Multi-scale deformable attention on CPUs in C++, through the compiled extension.

Vectors run over channels. Threads run over queries in the forward, and over heads in
the backward. A thread alone writes the gradient of its head's values, in the order of
the queries. No samples are stored. Where there are fewer heads than threads, queries
are split, and the shares of the gradient are added in order.
"""

import torch

from ..common import extension
from ..common.checks import device_reason, dtype_reason

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MAX_PIXELS = 2**31 - 1
MIN_SPLIT_QUERIES = 256


def unsupported(value, points, weights, reference) -> str | None:
    """Return why this backend does not support a call, or None."""
    if reason := device_reason(value, 'cpu', 'meta') or extension.UNAVAILABLE:
        return reason
    if reason := dtype_reason(DTYPES, value, points, weights, reference):
        return reason
    if value.shape[1] > MAX_PIXELS:
        return f'supports at most {MAX_PIXELS} pixels, got {value.shape[1]}'
    return None


def forward(value, points, weights, reference, *, shapes):
    """Return the output (B, Q, M, D)."""
    B, _, M, D = value.shape
    out = torch.empty(B, points.shape[1], M, D, dtype=value.dtype)
    tensors = _contiguous(value, points, weights, reference)
    torch.ops.mmattn_extension.ms_deform_attn_forward(*tensors, shapes, out)
    return out


def backward(grad, value, points, weights, reference, *, shapes):
    """Return the gradients of value, points, weights and reference, or None for it."""
    B, S, M, D = value.shape
    Q = points.shape[1]
    dtype = torch.promote_types(value.dtype, torch.float32)
    splits = _num_splits(B * M, Q)
    grad_value = torch.empty(
        splits, B, S, M, D, dtype=value.dtype if splits == 1 else dtype
    )
    grad_points, grad_weights = (
        torch.empty(x.shape, dtype=x.dtype) for x in (points, weights)
    )
    grad_reference = None
    if reference is not None:
        grad_reference = torch.empty(B, Q, M, *reference.shape[2:], dtype=dtype)
    tensors = _contiguous(value, points, weights, reference)
    torch.ops.mmattn_extension.ms_deform_attn_backward(
        grad.contiguous(), *tensors, shapes,
        grad_value, grad_points, grad_weights, grad_reference,
    )  # fmt: skip
    grad_value = grad_value[0] if splits == 1 else grad_value.sum(0).to(value.dtype)
    if reference is None:
        return grad_value, grad_points, grad_weights, None
    grad_reference = grad_reference.sum(2).to(reference.dtype)
    return grad_value, grad_points, grad_weights, grad_reference


def _num_splits(num_heads: int, Q: int) -> int:
    """Return the number of parts that the queries of each head of an image are split into.

    It is one where each thread gets a head, and where deterministic algorithms are
    requested, so that the number of threads does not change gradients.
    """
    if num_heads == 0 or torch.are_deterministic_algorithms_enabled():
        return 1
    wanted = -(-torch.get_num_threads() // num_heads)
    return max(1, min(wanted, Q // MIN_SPLIT_QUERIES))


def _contiguous(value, *others):
    if value.stride(3) != 1:
        value = value.contiguous()
    return value, *(x if x is None else x.contiguous() for x in others)
