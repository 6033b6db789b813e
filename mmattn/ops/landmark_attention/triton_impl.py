"""Launchers of the kernels of landmark attention, in triton_fwd.py and triton_bwd.py.

Both halves of the operator are one function, mixed attention: rows X attend to columns
Y with values V. On the key side landmarks attend to tokens, and on the query side
tokens attend to landmarks. The first call that needs Triton imports it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import triton_launch as launch

MAX_HEADS, MAX_MIXED_HEADS, MAX_HEAD_WIDTH = 32, 64, 128
MAX_MIXING = 2**15  # E * M * D up to which the kernels count below the reference

# (short side, long side, warps) by the mixed heads of a tile and whether a tile has all
# mixed heads and channels. Chosen from the compiler's reports, so that nothing spills.
FORWARD_TILES = launch.TileTable('landmark_attention.FORWARD_TILES', {
    (1, True): (32, 64, 4), (1, False): (16, 64, 4),
    (8, True): (16, 64, 8), (8, False): (16, 64, 8),
    (16, True): (16, 64, 8), (16, False): (16, 32, 8),
})  # fmt: skip
BACKWARD_TILES = launch.TileTable('landmark_attention.BACKWARD_TILES', {
    (1, True): (32, 32, 4), (1, False): (32, 32, 4),
    (8, True): (16, 32, 8), (8, False): (16, 32, 8),
    (16, True): (16, 32, 8), (16, False): (16, 16, 8),
})  # fmt: skip
NUM_STAGES = 2
TARGET_PROGRAMS = 132  # a loop is split over programs until there are this many
REDUCE_BLOCK = 256


def unsupported(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_landmarks: Tensor,
    k_landmarks: Tensor,
    w1_q: Tensor | None,
    w2_q: Tensor | None,
    w1_k: Tensor | None,
    w2_k: Tensor | None,
) -> str | None:
    """Return why this backend does not support a call, or None."""
    if reason := launch.reason(q, MAX_HEAD_WIDTH):
        return reason
    if q.shape[2] > MAX_HEADS:
        return f'supports at most {MAX_HEADS} heads, got {q.shape[2]}'
    for w in (w1_q, w1_k):
        if w is not None and w.shape[0] > MAX_MIXED_HEADS:
            return f'supports at most {MAX_MIXED_HEADS} mixed heads, got {w.shape[0]}'
    return None


def counts_above_reference(q: Tensor, *tensors: Tensor | None) -> bool:
    """Return whether the kernels cost more than the reference: very wide mixed heads.

    Heads are mixed one at a time, E of them for each of M: 5 times the cost at M = 32,
    E = 64 and 128 channels of a head, 0.6 times at M = 16, E = 32 and 32 channels.
    """
    w1_q = tensors[4]
    return w1_q is not None and w1_q.numel() * q.shape[3] > MAX_MIXING


def num_statistics(
    q: Tensor, k_landmarks: Tensor, w1_q: Tensor | None, w1_k: Tensor | None
) -> int:
    """Return the number of rows of both sides, each of which saves a log-sum-exp."""
    B, N, M, _ = q.shape
    E_q, E_k = (M if w is None else w.shape[0] for w in (w1_q, w1_k))
    return B * (E_k * k_landmarks.shape[1] + E_q * N)


def forward(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k):
    """Return the output, the context `A_K v` in fp32 and the statistics in fp32."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    context = torch.empty(q_landmarks.shape, dtype=torch.float32, device=q.device)
    statistics = torch.empty(
        num_statistics(q, k_landmarks, w1_q, w1_k), dtype=torch.float32, device=q.device
    )
    if len(q):
        lse_k, lse_q = _split_statistics(statistics, q, q_landmarks, w1_k)
        with torch.cuda.device_of(q):
            _mixed_forward(q_landmarks, k, v, w1_k, w2_k, context, lse_k)
            _mixed_forward(q, k_landmarks, context, w1_q, w2_q, out, lse_q)
    return out, context, statistics


def backward(
    grad, context, statistics, q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k
):
    """Return the gradients of the nine tensors, None for mixing weights of None."""
    if not len(q):
        return launch.zeros(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k)
    lse_k, lse_q = _split_statistics(statistics, q, q_landmarks, w1_k)
    with torch.cuda.device_of(q):
        dq, dk_landmarks, dcontext, dw1_q, dw2_q = _mixed_backward(
            grad, q, k_landmarks, context, w1_q, w2_q, lse_q
        )
        dq_landmarks, dk, dv, dw1_k, dw2_k = _mixed_backward(
            dcontext, q_landmarks, k, v, w1_k, w2_k, lse_k
        )
    return dq, dk, dv, dq_landmarks, dk_landmarks, dw1_q, dw2_q, dw1_k, dw2_k


def _split_statistics(statistics, q, q_landmarks, w1_k):
    B, L, M, _ = q_landmarks.shape
    E_k = M if w1_k is None else w1_k.shape[0]
    return statistics.split([B * E_k * L, statistics.numel() - B * E_k * L])


class _Problem(NamedTuple):
    """Hold what every kernel of one side is launched with."""

    groups: int  # sets of heads that mix: one, or a set for each head without mixing
    blocks: int  # number of blocks of EB mixed heads in a group
    tile: tuple[int, bool]
    constants: dict


def _problem(x, w1):
    M, D = x.shape[2:]
    groups, heads, mixed_heads = (M, 1, 1) if w1 is None else (1, M, w1.shape[0])
    EB = 1 if mixed_heads == 1 else 8 if mixed_heads <= 8 else 16
    blocks = launch.cdiv(mixed_heads, EB)
    BD = 32 if D % 32 == 0 or 16 < D < 32 else 16
    constants = dict(
        D=D, M=heads, E=mixed_heads, EB=EB, BD=BD, MIX=w1 is not None,
        PRECISION=launch.precision(x),
    )  # fmt: skip
    return _Problem(groups, blocks, (EB, blocks == 1 and D <= BD), constants)


def _options(problem: _Problem, num_warps: int) -> dict:
    """Return the compiler's options; maxnreg keeps it from spilling for occupancy."""
    options = dict(num_warps=num_warps, num_stages=NUM_STAGES, enable_fp_fusion=True)
    return options if problem.tile[1] else options | dict(maxnreg=255)


def _partials(out: Tensor, count: int, direct: bool) -> Tensor:
    """Return a tensor for the shares of `count` programs, or `out` if one may write it."""
    if direct and count == 1:
        return out
    return torch.empty((count, *out.shape), dtype=torch.float32, device=out.device)


def _reduce(partials: Tensor, out: Tensor, log: bool = False):
    """Write the sum, or log-sum-exp, of partials over their leading axis to `out`."""
    from .triton_fwd import _reduce_kernel

    if partials is out:
        return
    size = out.numel()
    _reduce_kernel[(launch.cdiv(size, REDUCE_BLOCK),)](
        partials, out, size, len(partials), LOG=log, BLOCK=REDUCE_BLOCK, num_warps=4
    )


def _mixed_forward(x, y, v, w1, w2, out, lse):
    """Write (w2 softmax(w1 x y^T / sqrt(D))) v to `out` and the log-sum-exp to `lse`."""
    from .triton_fwd import _fwd_kernel, _lse_kernel

    x, y, v = (launch.unit_stride(t) for t in (x, y, v))
    w1, w2 = (None if w is None else w.contiguous() for w in (w1, w2))
    B, R, M, D = x.shape
    S = y.shape[1]
    problem = _problem(x, w1)
    short, long, num_warps = FORWARD_TILES[problem.tile]
    row_tiles, col_tiles = launch.cdiv(R, short), launch.cdiv(S, long)
    splits, tiles = launch.split(
        col_tiles, row_tiles * B * problem.groups, TARGET_PROGRAMS
    )
    grid = (splits * row_tiles * B * problem.groups,)
    sizes = (
        B,
        R,
        S,
        problem.constants['M'],
        problem.groups,
        row_tiles,
        splits,
        tiles,
        D**-0.5,
    )
    constants = dict(
        problem.constants, BR=short, BC=long, **_options(problem, num_warps)
    )

    if col_tiles > 1:
        lse_partials = _partials(lse, splits, direct=True)
        _lse_kernel[(grid[0] * problem.blocks,)](
            x, y, w1, lse_partials, *launch.strides(x, y), *sizes, **constants
        )
        _reduce(lse_partials, lse, log=True)
    one_tile = tiles * problem.blocks == 1
    partials = _partials(out, splits, direct=one_tile or out.dtype == torch.float32)
    _fwd_kernel[grid](
        x, y, v, w1, w2, lse, partials, *launch.strides(x, y, v), *sizes,
        WHOLE_ROWS=col_tiles == 1, ONE_TILE=one_tile, **constants,
    )  # fmt: skip
    _reduce(partials, out)


def _mixed_backward(grad, x, y, v, w1, w2, lse):
    """Return the gradients of x, y, v, w1 and w2, given that of the output."""
    from .triton_bwd import _bwd_scores_kernel, _bwd_values_kernel

    dx, dy, dv, dw1, dw2 = grads = [
        None if t is None else torch.empty(t.shape, dtype=t.dtype, device=t.device)
        for t in (x, y, v, w1, w2)
    ]
    grad, x, y, v = (launch.unit_stride(t) for t in (grad, x, y, v))
    w1, w2 = (None if w is None else w.contiguous() for w in (w1, w2))
    B, R, M, D = x.shape
    S = y.shape[1]
    problem = _problem(x, w1)
    short, long, num_warps = BACKWARD_TILES[problem.tile]
    BR, BC = (short, long) if S <= R else (long, short)
    row_tiles, col_tiles = launch.cdiv(R, BR), launch.cdiv(S, BC)

    # The longer side is split over programs, the shorter one looped over in each.
    row_splits, col_splits = 1, 1
    if S <= R:
        row_splits, row_tiles = launch.split(
            row_tiles, B * problem.groups, TARGET_PROGRAMS
        )
    else:
        col_splits, col_tiles = launch.split(
            col_tiles, B * problem.groups, TARGET_PROGRAMS
        )
    num_programs = row_splits * col_splits * B * problem.groups
    sizes = (
        B, R, S, problem.constants['M'], problem.groups,
        row_splits, row_tiles, col_splits, col_tiles, D**-0.5,
    )  # fmt: skip
    strides = launch.strides(x, y, v, grad)
    one_row_tile = row_tiles * problem.blocks == 1
    one_col_tile = col_tiles * problem.blocks == 1
    constants = dict(
        problem.constants, BR=BR, BC=BC, ONE_ROW_TILE=one_row_tile, **_options(problem, num_warps)
    )  # fmt: skip

    delta = torch.empty_like(lse)
    deltas = _partials(delta, col_splits, direct=True)
    dvs = _partials(dv, row_splits, one_row_tile or dv.dtype == torch.float32)
    dw2s = None if w2 is None else _partials(dw2, num_programs, direct=False)
    _bwd_values_kernel[(num_programs,)](
        x, y, v, grad, w1, w2, lse, deltas, dvs, dw2s, *strides, *sizes, **constants
    )
    _reduce(deltas, delta)

    dxs = _partials(dx, col_splits, one_col_tile or dx.dtype == torch.float32)
    dys = _partials(dy, row_splits, one_row_tile or dy.dtype == torch.float32)
    dw1s = None if w1 is None else _partials(dw1, num_programs, direct=False)
    _bwd_scores_kernel[(num_programs,)](
        x, y, v, grad, w1, w2, lse, delta, dxs, dys, dw1s, *strides, *sizes,
        ONE_COL_TILE=one_col_tile, **constants,
    )  # fmt: skip
    for partials, out in ((dxs, dx), (dys, dy), (dvs, dv), (dw1s, dw1), (dw2s, dw2)):
        if out is not None:
            _reduce(partials, out)
    return grads
