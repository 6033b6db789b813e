"""Deformable attention with shared keys in Triton: forward, and what both passes share.

A program takes a block of queries of one head and loops over keys, in the manner of
FlashAttention. The bias of a query and a key is read from the table where it is needed.
A step from query to query is a constant step in the table, so of a key only the place
of query (0, 0) is computed: place(query) = offset - slope * position + step * query, on
each axis. Scores are in units of log 2.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_operand, program_block
from ..triton.softmax import LOG2_E, add_block, store_attention

PAD = tl.constexpr(2)  # zeros around the table, read by what lies outside it


@triton.jit
def key_places(ptr, keys, mask, offset_y, offset_x, slope_y, slope_x):
    """Return y and x in the table that query (0, 0) has for keys."""
    x = tl.load(ptr + keys * 2, mask=mask, other=0.0)
    y = tl.load(ptr + keys * 2 + 1, mask=mask, other=0.0)
    return offset_y - slope_y * y, offset_x - slope_x * x


@triton.jit
def axis_taps(origin, query, step, side, UNIT_STEP: tl.constexpr):
    """Return the first of two taps in the padded table, and the weight of the second.

    Keys are rows and queries are columns. With a step of 1 the weight depends on the
    key alone.
    """
    if UNIT_STEP:
        low = tl.floor(origin)
        tap = low.to(tl.int32)[:, None] + query[None, :]
        weight = (origin - low)[:, None]
    else:
        place = origin[:, None] + step * query.to(tl.float32)[None, :]
        low = tl.floor(place)
        tap = low.to(tl.int32)
        weight = place - low
    return tl.minimum(tl.maximum(tap, -PAD), side) + PAD, weight


@triton.jit
def table_values(
    ptr, origin_y, origin_x, y, x, step_y, step_x, TH, TW, UNIT_STEP: tl.constexpr
):
    """Return the bias of keys (rows) and queries (columns), and its slopes in y and x.

    Queries are the last axis, because Triton spreads that over lanes first, and the
    queries of a row read adjacent entries of the table.
    """
    tap_y, weight_y = axis_taps(origin_y, y, step_y, TH, UNIT_STEP)
    tap_x, weight_x = axis_taps(origin_x, x, step_x, TW, UNIT_STEP)
    width = TW + 2 * PAD
    ptrs = ptr + tap_y * width + tap_x
    top, bottom = tl.load(ptrs), tl.load(ptrs + width)
    rise_top = tl.load(ptrs + 1) - top
    rise_bottom = tl.load(ptrs + width + 1) - bottom
    top += weight_x * rise_top
    bottom += weight_x * rise_bottom
    rise_y = bottom - top
    rise_x = rise_top + weight_y * (rise_bottom - rise_top)
    return top + weight_y * rise_y, rise_y, rise_x


@triton.jit
def block_of_keys(
    q, k_ptr, v_ptr, positions_ptr, table_ptr, first, y, x, K, TH, TW,
    k_n_stride, v_n_stride, offset_y, offset_x, slope_y, slope_x, step_y, step_x, scale,
    D: tl.constexpr, DP: tl.constexpr, BK: tl.constexpr, UNIT_STEP: tl.constexpr,
    PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Return offsets of BK keys, which of them exist, k, v, and scores of queries."""
    keys = first + tl.arange(0, BK)
    cols, exist = keys.to(tl.int64), keys < K
    k = load_operand(k_ptr, cols * k_n_stride, exist, D, DP, NATIVE)
    v = load_operand(v_ptr, cols * v_n_stride, exist, D, DP, NATIVE)
    origin_y, origin_x = key_places(
        positions_ptr, keys, exist, offset_y, offset_x, slope_y, slope_x
    )
    bias, _, _ = table_values(
        table_ptr, origin_y, origin_x, y, x, step_y, step_x, TH, TW, UNIT_STEP
    )
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
    score += tl.trans(bias) * LOG2_E
    return cols, exist, k, v, score


@kernel
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, positions_ptr, table_ptr, out_ptr, lse_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, N, K, M, W, TH, TW, group_heads,
    offset_y, offset_x, slope_y, slope_x, step_y, step_x, blocks, scale,
    D: tl.constexpr, DP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    UNIT_STEP: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write out (B, N, M, D) and lse (B, M, N)."""
    b, m, block = program_block(M, blocks)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    positions_ptr += (b * (M // group_heads) + m // group_heads) * K * 2
    table_ptr += m * (TH + 2 * PAD) * (TW + 2 * PAD)
    queries = block * BQ + tl.arange(0, BQ)
    y, x = queries // W, queries % W
    rows, asks = queries.to(tl.int64), queries < N
    q = load_operand(q_ptr, rows * q_n_stride, asks, D, DP, NATIVE)

    high = tl.full([BQ], float('-inf'), tl.float32)
    total = tl.zeros([BQ], tl.float32)
    acc = tl.zeros([BQ, DP], tl.float32)
    for first in range(0, K, BK):
        _, exist, _, v, score = block_of_keys(
            q, k_ptr, v_ptr, positions_ptr, table_ptr, first, y, x, K, TH, TW,
            k_n_stride, v_n_stride, offset_y, offset_x, slope_y, slope_x, step_y,
            step_x, scale, D, DP, BK, UNIT_STEP, PRECISION, NATIVE,
        )  # fmt: skip
        score = tl.where(exist[None, :], score, float('-inf'))
        high, total, acc = add_block(high, total, acc, score, v, PRECISION)
    store_attention(out_ptr, lse_ptr, high, total, acc, b, m, rows, asks, N, M, D, DP)
