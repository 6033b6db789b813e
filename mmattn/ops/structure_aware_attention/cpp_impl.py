"""Structure-aware attention on CPUs in C++, through the compiled extension.

The forward transforms two heads as one, channels side by side in vectors, and uses a
row of a map where it was transformed. The backward is that of the backend `torch`.
"""

import torch
from torch.nn import functional as F

from .. import extension
from ..checks import device_reason, dtype_reason
from . import torch_impl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_SIDES = 2
ALIGNMENT = 16  # channels of the widest vector

backward = torch_impl.backward


def unsupported(q, k, v, w_a, w_b, bias) -> str | None:
    """Return why this backend does not support a call, or None."""
    if reason := device_reason(q, 'cpu', 'meta') or extension.UNAVAILABLE:
        return reason
    if w_b.dim() - 2 > MAX_SIDES:
        return f'supports grids of at most {MAX_SIDES} sides, got {w_b.dim() - 2}'
    return dtype_reason(DTYPES, q, k, v)


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Return the output and the patterns (B, M, K, N) in float32."""
    B, N, M, D = q.shape
    grid = (1, *grid)[-2:]
    out = torch.empty(q.shape, dtype=q.dtype)
    patterns = torch.zeros(B, M, bias.shape[1], N)
    padding = 0, -D % ALIGNMENT
    w_a, bias = (F.pad(x.movedim(0, -1), padding).contiguous() for x in (w_a, bias))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    torch.ops.mmattn_extension.structure_aware_attention_forward(
        q, k, v, w_a, w_b.contiguous(), bias, grid, out, patterns
    )
    return out, patterns
