"""Landmark attention in Triton: launchers of the kernels in triton_fwd and triton_bwd.

Both halves of the operator are one function, mixed attention: rows X attend to columns
Y with values V. Key side: landmarks attend to tokens; query side: tokens to landmarks.
Triton is imported by the first call that needs it.
"""

import importlib.util
import os
from typing import NamedTuple

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec('triton') is not None
INTERPRETED = os.environ.get('TRITON_INTERPRET') == '1'  # read as Triton reads it: once
MAX_HEADS, MAX_MIXED_HEADS, MAX_HEAD_WIDTH = 32, 64, 128
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# By E_PAD: (short side, long side, warps). The tile of mixed scores, E_PAD x short x
# long in fp32, has to leave room for a second one in the registers of its program.
FORWARD_TILES = {1: (64, 64, 4), 8: (32, 64, 8), 16: (16, 64, 8), 32: (16, 32, 8), 64: (16, 16, 8)}
BACKWARD_TILES = {1: (32, 64, 4), 8: (32, 32, 8), 16: (16, 32, 8), 32: (16, 16, 8), 64: (16, 16, 16)}
CHANNELS = 32  # of one head that are in a tile at a time
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
    if q.device.type != 'cuda' and not (INTERPRETED and q.device.type == 'cpu'):
        return f'it runs on CUDA devices, the tensors are on {q.device}'
    if not HAS_TRITON:
        return 'Triton is not installed (pip install triton)'
    if q.dtype not in DTYPES:
        return f'it has float32, float16 and bfloat16, got {q.dtype}'
    M, D = q.shape[2:]
    if M > MAX_HEADS or D > MAX_HEAD_WIDTH:
        return f'it has at most {MAX_HEADS} heads of {MAX_HEAD_WIDTH} channels, got {M} of {D}'
    for w in (w1_q, w1_k):
        if w is not None and w.shape[0] > MAX_MIXED_HEADS:
            return f'it has at most {MAX_MIXED_HEADS} mixed heads, got {w.shape[0]}'
    return None


def num_statistics(q: Tensor, k_landmarks: Tensor, w1_q: Tensor | None, w1_k: Tensor | None) -> int:
    """The log-sum-exp of every row of both sides: (B, E, L) and (B, E, N)."""
    B, N, M, _ = q.shape
    E_q, E_k = (M if w is None else w.shape[0] for w in (w1_q, w1_k))
    return B * (E_k * k_landmarks.shape[1] + E_q * N)


def forward(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k):
    """Returns the output, the context `A_K v` in fp32 and the statistics in fp32."""
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
    """Gradients of q, k, v, q_landmarks, k_landmarks and the four mixing weights."""
    if not len(q):
        tensors = (q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k)
        return tuple(
            None if x is None else torch.zeros(x.shape, dtype=x.dtype, device=x.device)
            for x in tensors
        )
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
    """What every kernel of one side is launched with."""

    groups: int  # sets of heads that mix with each other: one, or all without mixing
    heads: int  # of a group
    mixed_heads: int  # of a group
    constants: dict


def _problem(x, w1):
    M, D = x.shape[2:]
    groups, heads, mixed_heads = (M, 1, 1) if w1 is None else (1, M, w1.shape[0])
    E_PAD = 1 if mixed_heads == 1 else max(8, _power_of_2(mixed_heads))
    constants = dict(
        D=D, E=mixed_heads, E_PAD=E_PAD, BD=min(CHANNELS, max(16, _power_of_2(D))),
        MIX=w1 is not None, PRECISION='tf32x3' if x.dtype == torch.float32 else 'tf32',
    )  # fmt: skip
    return _Problem(groups, heads, mixed_heads, constants)


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _split(num_tiles: int, num_programs: int) -> tuple[int, int]:
    """Numbers of non-empty splits of a loop over tiles and of tiles in a split."""
    wanted = min(num_tiles, max(1, TARGET_PROGRAMS // num_programs))
    tiles = _cdiv(num_tiles, wanted)
    return _cdiv(num_tiles, tiles), tiles


def _strides(*tensors):
    return [stride for x in tensors for stride in x.stride()[:3]]


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


def _partials(out: Tensor, count: int, direct: bool) -> Tensor:
    """Where `count` programs write their share of `out`: `out` itself if they may."""
    if direct and count == 1:
        return out
    return torch.empty((count, *out.shape), dtype=torch.float32, device=out.device)


def _reduce(partials: Tensor, out: Tensor, log: bool = False):
    """`out` = sum, or log-sum-exp, of the partials over their leading axis."""
    from .triton_fwd import _reduce_kernel

    if partials is out:
        return
    size = out.numel()
    _reduce_kernel[(_cdiv(size, REDUCE_BLOCK),)](
        partials, out, size, len(partials), LOG=log, BLOCK=REDUCE_BLOCK, num_warps=4
    )


def _mixed_forward(x, y, v, w1, w2, out, lse):
    """Writes (w2 softmax(w1 x y^T / sqrt(D))) v to `out` and the log-sum-exp to `lse`."""
    from .triton_fwd import _fwd_kernel, _lse_kernel

    x, y, v = (_unit_stride(t) for t in (x, y, v))
    w1, w2 = (None if w is None else w.contiguous() for w in (w1, w2))
    B, R, M, D = x.shape
    S = y.shape[1]
    problem = _problem(x, w1)
    short, long, num_warps = FORWARD_TILES[problem.constants['E_PAD']]
    row_tiles, col_tiles = _cdiv(R, short), _cdiv(S, long)
    splits, tiles = _split(col_tiles, row_tiles * B * problem.groups)
    grid = (splits * row_tiles * B * problem.groups,)
    sizes = (B, R, S, problem.heads, problem.groups, row_tiles, splits, tiles, D**-0.5)
    constants = dict(problem.constants, BR=short, BC=long, num_warps=num_warps)

    if col_tiles > 1:
        lse_partials = _partials(lse, splits, direct=True)
        _lse_kernel[grid](x, y, w1, lse_partials, *_strides(x, y), *sizes, **constants)
        _reduce(lse_partials, lse, log=True)
    partials = _partials(out, splits, direct=tiles == 1 or out.dtype == torch.float32)
    _fwd_kernel[grid](
        x, y, v, w1, w2, lse, partials, *_strides(x, y, v), *sizes,
        WHOLE_ROWS=col_tiles == 1, ONE_TILE=tiles == 1, **constants,
    )  # fmt: skip
    _reduce(partials, out)


def _mixed_backward(grad, x, y, v, w1, w2, lse):
    """Gradients of x, y, v, w1 and w2, given the gradient of `_mixed_forward`'s `out`."""
    from .triton_bwd import _bwd_delta_kernel, _bwd_kernel

    grads = [
        None if t is None else torch.empty(t.shape, dtype=t.dtype, device=t.device)
        for t in (x, y, v, w1, w2)
    ]
    grad, x, y, v = (_unit_stride(t) for t in (grad, x, y, v))
    w1, w2 = (None if w is None else w.contiguous() for w in (w1, w2))
    B, R, M, D = x.shape
    S = y.shape[1]
    problem = _problem(x, w1)
    short, long, num_warps = BACKWARD_TILES[problem.constants['E_PAD']]
    BR, BC = (short, long) if S <= R else (long, short)
    row_tiles, col_tiles = _cdiv(R, BR), _cdiv(S, BC)
    whole_rows = col_tiles == 1
    strides = _strides(x, y, v, grad)
    constants = dict(problem.constants, BR=BR, BC=BC, num_warps=num_warps)

    delta = None
    if not whole_rows:
        splits, tiles = _split(col_tiles, row_tiles * B * problem.groups)
        delta = torch.empty_like(lse)
        partials = _partials(delta, splits, direct=True)
        _bwd_delta_kernel[(splits * row_tiles * B * problem.groups,)](
            x, y, v, grad, w1, w2, lse, partials, *strides,
            B, R, S, problem.heads, problem.groups, row_tiles, splits, tiles, D**-0.5,
            **constants,
        )  # fmt: skip
        _reduce(partials, delta)

    # The longer side is split over programs, the shorter one looped over in each.
    row_splits, col_splits = 1, 1
    if S <= R:
        row_splits, row_tiles = _split(row_tiles, B * problem.groups)
    else:
        col_splits, col_tiles = _split(col_tiles, B * problem.groups)
    num_programs = row_splits * col_splits * B * problem.groups
    counts = (col_splits, row_splits, row_splits, num_programs, num_programs)
    alone = (col_tiles == 1, row_tiles == 1, row_tiles == 1, False, False)
    partials = [
        None if t is None else _partials(t, count, one_tile or t.dtype == torch.float32)
        for t, count, one_tile in zip(grads, counts, alone, strict=True)
    ]
    _bwd_kernel[(num_programs,)](
        x, y, v, grad, w1, w2, lse, delta, *partials, *strides,
        B, R, S, problem.heads, problem.groups,
        row_splits, row_tiles, col_splits, col_tiles, D**-0.5,
        WHOLE_ROWS=whole_rows, ONE_ROW_TILE=row_tiles == 1, ONE_COL_TILE=col_tiles == 1,
        **constants,
    )  # fmt: skip
    for partial, t in zip(partials, grads, strict=True):
        if t is not None:
            _reduce(partial, t)
    return grads
