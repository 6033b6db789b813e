"""Launchers of the kernels of landmark attention, in triton_attend.py and triton_fold.py.

Mixing weights are folded into the landmarks, so that products suit tensor cores.
README.md in this folder has the equations. The first call that needs Triton imports it.
"""

from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from ..triton import launch

MAX_HEADS, MAX_MIXED_HEADS, MAX_HEAD_WIDTH = 32, 64, 128
# Where heads mix, the kernels count below the reference up to this E * M * D and, with
# gradients, from this many tokens of a landmark on: where lines through the counts of
# both passes at 196 and 4200 tokens cross, rounded up, on sm_80 and on sm_90.
MAX_MIXING = 2**15
MIN_TOKENS = 2

# Rows, columns, channels of a chunk, chunks of a result at most, and warps, by the compute
# capability and the pass: of those that we tried, the fewest instructions by count with at
# most 40 spilled bytes up to 320 channels.
HALF_TILES = {
    (80, 'forward'): (32, 64, 64, 5, 4),
    (80, 'backward'): (16, 64, 64, 5, 4),
    (90, 'forward'): (64, 64, 64, 5, 4),
    (90, 'backward'): (64, 64, 32, 6, 4),
}
TILES = launch.tables_by_dtype(
    'landmark_attention.TILES',
    {
        torch.float32: dict.fromkeys(HALF_TILES, (16, 32, 32, 2, 8))
        | {(80, 'forward'): (32, 32, 32, 2, 8), (90, 'forward'): (32, 32, 32, 2, 8)},
        torch.float16: HALF_TILES,
        torch.bfloat16: HALF_TILES,
    },
)
MAX_KEPT = 80 * 1024  # bytes of rows that a program keeps in shared memory
WIDE_CHANNELS = 128  # of a program's output at most, where not all fit
NUMBERS = 2048  # of a tile, in kernels that fold
TARGET_PROGRAMS = 132  # a loop is split over programs until there are this many


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
    attention = q, k, v, q_landmarks, k_landmarks
    if reason := launch.reason(q, MAX_HEAD_WIDTH) or launch.offsets_reason(*attention):
        return reason
    if q.shape[2] > MAX_HEADS:
        return f'supports at most {MAX_HEADS} heads, got {q.shape[2]}'
    for w in (w1_q, w1_k):
        if w is not None and w.shape[0] > MAX_MIXED_HEADS:
            return f'supports at most {MAX_MIXED_HEADS} mixed heads, got {w.shape[0]}'
    return None


def prefers_reference(
    q, k, v, q_landmarks, k_landmarks, w1_q, *mixing, needs_grad: bool
) -> bool:
    """Return whether the kernels cost more than the reference, by their tables.

    A mixed head has all M * D channels, of which a program has 320 results at most, so
    that the cost of a token grows with E * M * D, and faster beyond 320 channels. The
    backward spends on folded landmarks what the reference spends on tokens.
    """
    if w1_q is None or not q.is_cuda:
        return False
    is_short = needs_grad and q.shape[1] < MIN_TOKENS * q_landmarks.shape[1]
    return is_short or w1_q.numel() * q.shape[3] > MAX_MIXING


def num_statistics(
    q: Tensor, k_landmarks: Tensor, w1_q: Tensor | None, w1_k: Tensor | None
) -> int:
    """Return the number of rows of the query side, each of which saves a log-sum-exp."""
    B, N, M, _ = q.shape
    return B * N * (M if w1_q is None else w1_q.shape[0])


def forward(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k):
    """Return the output, the context `A_K v` in fp32 and the statistics in fp32."""
    context = launch.empty(q, *q_landmarks.shape)
    lse = launch.empty(q, num_statistics(q, k_landmarks, w1_q, w1_k))
    if not len(q):
        return torch.empty(q.shape, dtype=q.dtype, device=q.device), context, lse
    q_landmarks, k_landmarks = map(launch.unit_stride, (q_landmarks, k_landmarks))
    w1_q, w2_q, w1_k, w2_k = (_contiguous(w) for w in (w1_q, w2_q, w1_k, w2_k))
    of_queries, of_keys = _side(q, w1_q), _side(q, w1_k)
    with torch.cuda.device_of(q):
        queries, keys, values = _fold(
            of_queries, of_keys, q_landmarks, k_landmarks, w1_q, w1_k
        )
        tokens = _tokens(k, of_keys), _tokens(v, of_keys)
        shares = _attend(of_keys, 'online', (queries,), tokens, None)
        _write_context(of_queries, of_keys, *shares, w2_q, w2_k, context, values)
        tokens = (_tokens(q, of_queries),)
        (out,) = _attend(of_queries, 'own', tokens, (keys, values), lse)
    return out, context, lse


def backward(
    grad, context, lse, q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k
):
    """Return the gradients of the nine tensors, None for mixing weights of None."""
    if not len(q):
        return launch.zeros(q, k, v, q_landmarks, k_landmarks, w1_q, w2_q, w1_k, w2_k)
    q_landmarks, k_landmarks = map(launch.unit_stride, (q_landmarks, k_landmarks))
    w1_q, w2_q, w1_k, w2_k = (_contiguous(w) for w in (w1_q, w2_q, w1_k, w2_k))
    of_queries, of_keys = _side(q, w1_q), _side(q, w1_k)
    with torch.cuda.device_of(q):
        queries, keys, values = _fold(
            of_queries, of_keys, q_landmarks, k_landmarks, w1_q, w1_k, w2_q, context
        )
        of_q = _tokens(q, of_queries), _tokens(grad, of_queries)
        of_kv = _tokens(k, of_keys), _tokens(v, of_keys)
        shares = _attend(of_keys, 'online', (queries,), of_kv, None)
        delta = torch.empty_like(lse)
        (dq,) = _attend(of_queries, 'own delta', of_q, (keys, values), lse, delta)
        dkeys, dvalues = _attend(of_queries, 'col', (keys, values), of_q, lse, delta)
        dk_landmarks, dcontext, grads, means, *stats = _bwd_context(
            of_queries, of_keys, dkeys, dvalues, *shares, w1_q, w2_q, w2_k, q_landmarks
        )
        dk, dv = _attend(of_keys, 'col', of_kv, (queries, grads), *stats)
        (dqueries,) = _attend(of_keys, 'row', (queries, grads), of_kv, *stats)
        dq_landmarks, dw1_k, dw2_k, dw1_q, dw2_q = _unfold(
            of_keys, (dqueries, q_landmarks, w1_k, means, dcontext, w2_k),
            of_queries, (dkeys, k_landmarks, w1_q, dvalues, context, w2_q),
        )  # fmt: skip
    return dq, dk, dv, dq_landmarks, dk_landmarks, dw1_q, dw2_q, dw1_k, dw2_k


def _contiguous(w: Tensor | None) -> Tensor | None:
    return None if w is None else w.contiguous()


class _Side(NamedTuple):
    """Hold the sizes of a side. Heads that do not mix are groups of their own."""

    heads: int
    width: int
    mixed: int  # mixed heads, 0 without mixing

    @property
    def groups(self) -> int:
        return 1 if self.mixed else self.heads

    @property
    def channels(self) -> int:
        """Channels of a group, which a product sums over."""
        return self.heads * self.width if self.mixed else self.width

    @property
    def rows(self) -> int:
        """Rows of a folded tensor for each landmark."""
        return self.mixed or self.heads


def _side(x: Tensor, w1: Tensor | None) -> _Side:
    return _Side(*x.shape[2:], 0 if w1 is None else len(w1))


class _Operand(NamedTuple):
    """Hold a tensor, the number of its rows in a segment, and three strides.

    A segment has the rows of one image and group, of one mixed head if it is folded.
    """

    x: Tensor
    count: int
    strides: tuple[int, int, int]  # of images, rows and groups
    is_folded: bool


def _tokens(x: Tensor, side: _Side) -> _Operand:
    """Return an operand of shape (B, N, M, D)."""
    apart = side.mixed and side.heads > 1 and x.stride(2) != side.width
    if x.stride(3) != 1 or apart:
        x = x.contiguous()
    return _Operand(x, x.shape[1], x.stride()[:3], False)


def _folded(x: Tensor, L: int, side: _Side) -> _Operand:
    """Return an operand of shape (parts, B, rows of all landmarks, channels)."""
    C = side.channels
    size = side.rows * L * C
    return _Operand(x, L, (size, C, size // side.groups), True)


def _empty_folded(landmarks: Tensor, side: _Side) -> _Operand:
    B, L = landmarks.shape[:2]
    parts = 1 if landmarks.dtype == torch.float32 else 2
    shape = parts, B, side.rows * L, side.channels
    x = torch.empty(shape, dtype=landmarks.dtype, device=landmarks.device)
    return _folded(x, L, side)


def _tiles(x: Tensor, queries: _Side, keys: _Side) -> tuple[int, dict]:
    """Return tiles of landmarks, and constants and options of kernels of folding.

    x are landmarks (B, L, M, D). Few landmarks are spread over more programs.
    """
    B, L, M, D = x.shape
    DP = launch.power_of_two(D)
    most = launch.power_of_two(launch.cdiv(B * L * M, TARGET_PROGRAMS))
    BR = max(8, min(most, 64, NUMBERS // DP))
    sizes = dict(M=M, D=D, E_K=keys.mixed, E_Q=queries.mixed, DP=DP, BR=BR)
    return launch.cdiv(B * L, BR), sizes | dict(num_warps=4, enable_fp_fusion=True)


def _fold(
    of_queries, of_keys, q_landmarks, k_landmarks, w1_q, w1_k, w2_q=None, context=None
):
    """Return folded q_landmarks, k_landmarks and context, empty if that is None."""
    from .triton_fold import _fold_kernel

    B, L, _, D = q_landmarks.shape
    queries = _empty_folded(q_landmarks, of_keys)
    keys, values = (_empty_folded(k_landmarks, of_queries) for _ in range(2))
    tiles, sizes = _tiles(q_landmarks, of_queries, of_keys)
    _fold_kernel[(tiles * of_keys.heads,)](
        q_landmarks, w1_k, queries.x, k_landmarks, w1_q, keys.x,
        context, w2_q, values.x, *launch.strides(q_landmarks, k_landmarks),
        queries.x[0].numel(), keys.x[0].numel(), B, L, D**-0.5 / log(2), **sizes,
    )  # fmt: skip
    return queries, keys, values


def _write_context(of_queries, of_keys, shares, lse, w2_q, w2_k, context, values):
    """Write the context `A_K v`, and folded into `values`."""
    from .triton_fold import _context_kernel

    B, L = context.shape[:2]
    tiles, sizes = _tiles(context, of_queries, of_keys)
    _context_kernel[(tiles * of_keys.heads,)](
        shares, lse, w2_k, w2_q, context, values.x, B, L, len(shares), shares[0].numel(),
        lse[0].numel(), values.x[0].numel(), **sizes,
    )  # fmt: skip


def _bwd_context(
    of_queries, of_keys, dkeys, dvalues, shares, lse, w1_q, w2_q, w2_k, landmarks
):
    """Return the gradients of k_landmarks and of the context, the latter also folded.

    Also returns the means of values, log-sum-exps and deltas of the key side.
    """
    from .triton_fold import _bwd_context_kernel, _bwd_means_kernel

    B, L, _, D = landmarks.shape
    dk_landmarks = landmarks.new_empty(landmarks.shape)
    dcontext = launch.empty(landmarks, *landmarks.shape)
    grads = _empty_folded(landmarks, of_keys)
    means = torch.empty_like(shares[:1])
    stats = [torch.empty_like(lse[0]) for _ in range(2)]
    tiles, sizes = _tiles(landmarks, of_queries, of_keys)
    _bwd_context_kernel[(tiles * of_keys.heads,)](
        dkeys, dvalues, w1_q, w2_q, dk_landmarks, dcontext, B, L,
        len(dkeys), dkeys[0].numel(), D**-0.5, **sizes,
    )  # fmt: skip
    # With more warps ptxas spills a register of small tiles on sm_80.
    sizes |= dict(num_warps=min(4, sizes['BR'] // 4), enable_fp_fusion=False)
    _bwd_means_kernel[(tiles * of_keys.rows,)](
        shares, lse, w2_k, dcontext, grads.x, means, *stats, B, L,
        len(shares), shares[0].numel(), lse[0].numel(), grads.x[0].numel(), **sizes,
    )  # fmt: skip
    return dk_landmarks, dcontext, grads, means, *stats


def _unfold(of_keys: _Side, keys: tuple, of_queries: _Side, queries: tuple):
    """Return the gradients of q_landmarks and of w1 and w2 of both sides.

    Args:
        of_keys, of_queries: sizes of the sides.
        keys, queries: for either side, shares of the gradients of folded landmarks, the
            landmarks (B, L, M, D), w1, shares of folded values (of their gradients on
            the query side), what they multiply (B, L, M, D), and w2.
    """
    from .triton_fold import _unfold_kernel

    x = keys[1]
    B, L, _, D = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tiles, sizes = _tiles(x, of_queries, of_keys)
    num_unfold = tiles * of_keys.heads
    programs, arguments, grads = num_unfold, [], []
    for side, (drows, marks, w1, means, y, w2) in (
        (of_keys, keys), (of_queries, queries),
    ):  # fmt: skip
        dw1, dw2 = (None if w is None else torch.empty_like(w) for w in (w1, w2))
        grads += dw1, dw2
        arguments += drows, marks, dw1, means, y, dw2, *launch.strides(marks, y)
        arguments += len(drows), len(means), drows[0].numel()
        programs += 2 * side.mixed * side.heads
    _unfold_kernel[(programs,)](
        *arguments, keys[2], dx, B, L, num_unfold, D**-0.5,
        **sizes,
    )  # fmt: skip
    return dx, *grads


def _attend(
    side: _Side,
    stats: str,
    rows: tuple[_Operand, ...],
    columns: tuple[_Operand, ...],
    lse: Tensor | None,
    delta: Tensor | None = None,
) -> list[Tensor]:
    """Launch the kernel of products with maps.

    Args:
        side: of the operator.
        stats: where log-sum-exps are from, see `_attend_kernel`.
        rows: X, and for gradients the output's gradient.
        columns: Y and V.
        lse, delta: statistics, which are read or written.

    Returns:
        One gradient, or with 'col' those by Y and by V, and otherwise the output. Those
        of landmarks are folded, with the shares of programs along a new first axis, and
        with 'online' their log-sum-exps come last.
    """
    from .triton_attend import _attend_kernel

    (x, y), v = (rows[0], columns[0]), columns[1]
    g = rows[-1]
    device, dtype = x.x.device, x.x.dtype
    has_grad = len(rows) > 1
    kind = 'backward' if has_grad else 'forward'
    BR, BC, BD, most, num_warps = TILES[dtype][launch.capability(x.x), kind]
    by_landmarks = stats in ('online', 'row') or stats == 'col' and not x.is_folded
    segments, flat = side.rows // side.groups, 1
    if by_landmarks:
        segments, flat = 1, segments
    R, row_segments = (x.count * flat, segments) if x.is_folded else (x.count, 1)
    S, col_segments = (y.count * flat, segments) if y.is_folded else (y.count, 1)
    folded = x if x.is_folded else y
    B, C = folded.x.shape[1], side.channels
    num_parts = len(folded.x)
    BD = min(BD, launch.power_of_two(C, least=16))
    chunks = launch.cdiv(C, BD)
    if chunks > most and kind == 'forward':
        most = min(most, WIDE_CHANNELS // BD)
    parts = launch.cdiv(chunks, most)
    row_tiles, col_tiles = launch.cdiv(R, BR), launch.cdiv(S, BC)
    programs = (
        B * side.groups * row_segments * row_tiles * parts * (1 + (stats == 'col'))
    )
    splits, tiles = 1, col_tiles
    if x.is_folded:
        target = TARGET_PROGRAMS + programs - 1
        splits, tiles = launch.split(col_tiles, programs, target)
        shape, shares = (splits, *x.x.shape[1:]), torch.float32
        strides = x.strides
    else:
        shape, shares = x.x.shape, dtype
        strides = x.count * side.heads * side.width, side.heads * side.width, side.width
    # Elsewhere registers are short, and rows are read anew for each tile.
    keeps = kind == 'forward' or (not x.is_folded and BR == 64)
    size = BR * chunks * BD * x.x.element_size() * (num_parts if x.is_folded else 1)
    keeps = keeps and num_parts == 2 and size <= MAX_KEPT
    outs = [
        torch.empty(shape, dtype=shares, device=device)
        for _ in range(1 + (stats == 'col'))
    ]
    scale = log(2) if has_grad and not x.is_folded else 1.0  # folded for log 2
    if stats == 'online':
        lse = launch.empty(x.x, splits, B * R * side.groups)
    _attend_kernel[(programs * splits,)](
        x.x, g.x if has_grad else None, y.x, v.x, outs[0],
        outs[1] if stats == 'col' else None, lse, delta,
        *x.strides, *g.strides, *y.strides, *v.strides, *strides,
        B, R, S, row_tiles, splits, tiles, B * side.rows * x.count * C,
        folded.x[0].numel(), scale,
        C=C, BR=BR, BC=BC, BD=BD, CHUNKS=launch.cdiv(chunks, parts), PARTS=parts,
        KEEP=keeps, KEEP_G=keeps and has_grad and 2 * size <= MAX_KEPT,
        X_PARTS=num_parts if x.is_folded else 1,
        Y_PARTS=num_parts if y.is_folded else 1,
        FOLDED=x.is_folded, GROUPS=side.groups, ROW_SEGMENTS=row_segments,
        COL_SEGMENTS=col_segments,
        MANY=stats.startswith('own') and col_tiles > 1, STATS=stats,
        GRAD=has_grad, NATIVE=dtype != torch.float32 and not launch.INTERPRETED,
        PRECISION=launch.precision(x.x), num_warps=num_warps, num_stages=1, maxnreg=255,
    )  # fmt: skip
    return [*outs, lse] if stats == 'online' else outs
