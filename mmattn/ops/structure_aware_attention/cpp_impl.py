"""Structure-aware attention on CPUs in C++, through the compiled extension.

Two heads are transformed as one, channels side by side in vectors, and a row of a map
is used where it was transformed. In the backward each thread sums the gradients of the
kernels for its heads, and the sums of the threads are added in order.
"""

import torch
from torch.nn import functional as F

from ..common import extension
from ..common.checks import device_reason, dtype_reason

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_SIDES = 2
LANES = 4  # of the narrowest vector; each instruction set doubles them


def unsupported(q, k, v, w_a, w_b, bias) -> str | None:
    """Return why this backend does not support a call, or None."""
    if reason := device_reason(q, 'cpu', 'meta') or extension.UNAVAILABLE:
        return reason
    if w_b.dim() - 2 > MAX_SIDES:
        return f'supports grids of at most {MAX_SIDES} sides, got {w_b.dim() - 2}'
    return dtype_reason(DTYPES, q, k, v)


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Return the output and the patterns (B, M, K, N) in float32."""
    B, N, M, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype)
    patterns = torch.zeros(B, M, bias.shape[1], N)
    torch.ops.mmattn_extension.structure_aware_attention_forward(
        *_readable(q, k, v),
        *_in_vectors(w_a, w_b, bias),
        (1, *grid)[-2:],
        out,
        patterns,
    )
    return out, patterns


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Return the gradients of q, k, v, the parts of w_a and w_b, and the bias."""
    B, _, M, D = q.shape
    weights = _in_vectors(w_a, w_b, bias)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    parts = min(torch.get_num_threads(), B * -(-M // 2))
    dw_a, dw_b, dbias = (torch.zeros(parts, *x.shape) for x in weights)
    torch.ops.mmattn_extension.structure_aware_attention_backward(
        *_readable(grad), patterns, *_readable(q, k, v), *weights, (1, *grid)[-2:],
        dq, dk, dv, dw_a, dw_b, dbias,
    )  # fmt: skip
    dw_a, dbias = (
        x.sum(0).movedim(0, -2).flatten(-2)[..., :D].movedim(-1, 0).contiguous()
        for x in (dw_a, dbias)
    )
    return dq, dk, dv, dw_a, dw_b.sum(0), dbias


def _readable(*tensors):
    return (x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


def _in_vectors(w_a, w_b, bias):
    """Return w_a (blocks, K, *half, 2, lanes), w_b, and bias (blocks, K, lanes)."""
    lanes = LANES << torch.ops.mmattn_extension.instruction_set()
    padding = 0, -len(w_a) % lanes
    w_a, bias = (
        F.pad(x.movedim(0, -1), padding).unflatten(-1, (-1, lanes)).movedim(-2, 0)
        for x in (w_a, bias)
    )
    return w_a.contiguous(), w_b.contiguous(), bias.contiguous()
