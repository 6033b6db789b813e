"""Deformable attention on CPUs in C++, through the compiled extension.

A thread takes tiles of queries of a head in the forward, heads in the backward. Where
there are fewer heads than threads, rows of queries are split, and the shares of the
gradients are added in order.
"""

import torch

from ..common import extension
from ..common.checks import device_reason, dtype_reason

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MIN_SPLIT_QUERIES = 256


def unsupported(q, k, v, positions, table) -> str | None:
    """Return why this backend does not support a call, or None."""
    if reason := device_reason(q, 'cpu', 'meta') or extension.UNAVAILABLE:
        return reason
    return dtype_reason(DTYPES, q, positions, table)


def forward(q, k, v, positions, table, *, grid, align_corners):
    """Return the output, and statistics (B, M, N, 1 + D) for the backward.

    They are the log of each row's sum of exponentials, and the output in float32.
    """
    B, N, M, D = q.shape
    out, statistics = torch.empty(q.shape, dtype=q.dtype), torch.empty(B, M, N, 1 + D)
    torch.ops.mmattn_extension.deformable_attention_forward(
        *_readable(q, k, v), *_bias(positions, table), grid, align_corners, out,
        statistics,
    )  # fmt: skip
    return out, statistics


def backward(grad, out, statistics, q, k, v, positions, table, *, grid, align_corners):
    """Return the gradients of q, k, v, positions and table."""
    (B, _, M, D), (G, K), (Th, Tw) = q.shape, positions.shape[1:3], table.shape[1:]
    splits = _num_splits(B * M, grid)
    dq = torch.empty(q.shape, dtype=q.dtype)
    dk, dv, dpositions, dtable = (
        torch.empty(splits, B, M, *shape)
        for shape in ((K, D), (K, D), (K, 2), (Th, Tw))
    )
    torch.ops.mmattn_extension.deformable_attention_backward(
        *_readable(grad), statistics, *_readable(q, k, v), *_bias(positions, table),
        grid, align_corners, dq, dk, dv, dpositions, dtable,
    )  # fmt: skip
    dk, dv = (x.sum(0).transpose(1, 2).to(q.dtype).contiguous() for x in (dk, dv))
    dpositions = dpositions.view(splits, B, G, M // G, K, 2).sum((0, 3))
    dtable = dtable.sum((0, 1))
    return dq, dk, dv, dpositions.to(positions.dtype), dtable.to(table.dtype)


def _num_splits(num_heads: int, grid) -> int:
    """Return the number of parts that the rows of queries are split into.

    It is one where each thread gets a head, and where deterministic algorithms are
    requested, so that the number of threads does not change gradients.
    """
    if num_heads == 0 or torch.are_deterministic_algorithms_enabled():
        return 1
    wanted = -(-torch.get_num_threads() // num_heads)
    return max(1, min(wanted, grid[0], grid[0] * grid[1] // MIN_SPLIT_QUERIES))


def _readable(*tensors):
    return (x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


def _bias(positions, table):
    return positions.float().contiguous(), table.float().contiguous()
