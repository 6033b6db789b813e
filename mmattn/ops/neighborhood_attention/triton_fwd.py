"""Neighborhood attention in Triton: forward, and what both passes share.

A program takes a tile of TH x TW queries of one head, and loops over blocks of BH x BW
keys of the rectangle that their windows cover. Keys outside a query's window have the
score -inf. Offsets inside an image have 32 bits. Scores are in units of log 2.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_operand
from ..triton.softmax import LOG2_E, add_block, store_attention

LOWEST = tl.constexpr(-1e30)  # of scores: unlike -inf, it may be subtracted from itself


@triton.jit
def program_tile(M, H, W, TH: tl.constexpr, TW: tl.constexpr):
    """Return batch element, head, number of the tile, and its first row and column.

    Heads vary fastest, because the heads of a pixel are adjacent in memory.
    """
    pid = tl.program_id(0)
    tiles_x = tl.cdiv(W, TW)
    tiles = tiles_x * tl.cdiv(H, TH)
    m, tile, b = pid % M, pid // M % tiles, pid // (M * tiles)
    y, x = tile // tiles_x * TH, tile % tiles_x * TW
    return b.to(tl.int64), m.to(tl.int64), tile, y, x


@triton.jit
def pixels(y, x, end_y, end_x, W, BH: tl.constexpr, BW: tl.constexpr):
    """Return y, x, number and mask of the pixels of a rectangle from (y, x)."""
    place = tl.arange(0, BH * BW)
    y += place // BW
    x += place % BW
    return y, x, y * W + x, (y < end_y) & (x < end_x)


@triton.jit
def window_start(place, side, K: tl.constexpr):
    """Return the first of the K places of a side that are nearest to a place."""
    return tl.minimum(tl.maximum(place - K // 2, 0), side - K)


@triton.jit
def keys_of(first, side, K: tl.constexpr, SIZE: tl.constexpr):
    """Return the range of the keys that SIZE queries from `first` see on a side."""
    last = tl.minimum(first + SIZE, side) - 1
    return window_start(first, side, K), window_start(last, side, K) + K


@triton.jit
def table_place(y, x, K: tl.constexpr):
    """Return a pixel's number; a key's minus a query's is their place in the table."""
    return y * (2 * K - 1) + x


@triton.jit
def query_windows(y, x, H, W, K: tl.constexpr):
    """Return starts of windows in y and x, and `table_place`, of queries.

    Those outside the map, which nobody asks for, take the place of its last pixels,
    since their own would be outside the table.
    """
    y, x = tl.minimum(y, H - 1), tl.minimum(x, W - 1)
    return window_start(y, H, K), window_start(x, W, K), table_place(y, x, K)


@triton.jit
def pair_scores(
    rows, columns, queries, keys, top, left, y, x, rpb_ptr, scale,
    K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return scores in powers of 2, -inf for keys outside the window.

    Rows and columns are queries and keys, or keys and queries, and the other arguments
    broadcast: places in the table, starts of windows and places of keys.
    """
    seen = (y - top).to(tl.uint32, bitcast=True) < K
    seen = seen & ((x - left).to(tl.uint32, bitcast=True) < K)
    place = keys - queries + (K - 1) * (2 * K)
    bias = tl.load(rpb_ptr + place, mask=seen, other=float('-inf'))
    bias = bias.to(tl.float32) * (1.0 / scale)
    score = tl.dot(rows, tl.trans(columns), bias, input_precision=PRECISION)
    return score * (scale * LOG2_E)


@kernel
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, rpb_ptr, out_ptr, lse_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, M, H, W, scale,
    K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TH: tl.constexpr,
    TW: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Write out (B, N, M, D) and lse (B, M, N)."""
    b, m, _, y0, x0 = program_tile(M, H, W, TH, TW)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    rpb_ptr += m * (2 * K - 1) * (2 * K - 1)
    y, x, n, exists = pixels(y0, x0, H, W, W, TH, TW)
    top, left, queries = query_windows(y, x, H, W, K)
    top, left, queries = top[:, None], left[:, None], queries[:, None]
    q = load_operand(q_ptr, n * q_n_stride, exists, D, DP, NATIVE)

    high = tl.full([TH * TW], LOWEST, tl.float32)
    total = tl.zeros([TH * TW], tl.float32)
    acc = tl.zeros([TH * TW, DP], tl.float32)
    start_y, end_y = keys_of(y0, H, K, TH)
    start_x, end_x = keys_of(x0, W, K, TW)
    columns = tl.cdiv(end_x - start_x, BW)
    for block in range(columns * tl.cdiv(end_y - start_y, BH)):
        first_y = start_y + block // columns * BH
        first_x = start_x + block % columns * BW
        key_y, key_x, key, is_key = pixels(first_y, first_x, end_y, end_x, W, BH, BW)
        k = load_operand(k_ptr, key * k_n_stride, is_key, D, DP, NATIVE)
        v = load_operand(v_ptr, key * v_n_stride, is_key, D, DP, NATIVE)
        keys = table_place(key_y, key_x, K)[None, :]
        score = pair_scores(
            q, k, queries, keys, top, left, key_y[None, :], key_x[None, :],
            rpb_ptr, scale, K, PRECISION,
        )  # fmt: skip
        high, total, acc = add_block(high, total, acc, score, v, PRECISION)
    store_attention(
        out_ptr, lse_ptr, high, total, acc, b, m, n, exists, H * W, M, D, DP
    )
