"""Neighborhood attention in Triton: backward.

Gradients of keys and values are gathered from the queries that see them, so that no
sum depends on the order of programs.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_operand, load_rows, store_rows
from ..triton.softmax import LOG2_E
from ..triton.tf32 import product, round_operand
from .triton_fwd import (
    keys_of,
    pair_scores,
    pixels,
    program_tile,
    query_windows,
    table_place,
)


@triton.jit
def hits(
    key, query, PAIRS: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr,
    CELLS: tl.constexpr,
):  # fmt: skip
    """Return 1 where a pair of places on an axis belongs to a cell of the table's side,
    [PAIRS, CELLS]. Pairs are queries from `query` with BLOCK keys each from `key`."""
    pair = tl.arange(0, PAIRS)[:, None]
    cell = key + pair % BLOCK - query - pair // BLOCK + K - 1
    return (cell == tl.arange(0, CELLS)[None, :]).to(tl.float32)


@kernel
def _bwd_queries_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, out_ptr, rpb_ptr, lse_ptr, delta_ptr, dq_ptr,
    drpb_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    M, H, W, scale,
    K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TH: tl.constexpr,
    TW: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, CELLS: tl.constexpr,
    PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write dq, delta = grad . out (B, M, N) and this tile's share of the gradient of
    the table, drpb (B, tiles, M, 2 K - 1, 2 K - 1)."""
    b, m, tile, y0, x0 = program_tile(M, H, W, TH, TW)
    N, tiles = H * W, tl.cdiv(H, TH) * tl.cdiv(W, TW)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    rpb_ptr += m * (2 * K - 1) * (2 * K - 1)
    out_ptr += (b * N * M + m) * D
    dq_ptr += (b * N * M + m) * D
    y, x, n, exists = pixels(y0, x0, H, W, W, TH, TW)
    top, left, queries = query_windows(y, x, H, W, K)
    top, left, queries = top[:, None], left[:, None], queries[:, None]
    q = load_operand(q_ptr, n * q_n_stride, exists, D, DP, NATIVE)
    grad = load_operand(grad_ptr, n * g_n_stride, exists, D, DP, NATIVE)
    out = load_rows(out_ptr, n * (M * D), exists, D, DP)
    delta = tl.sum(grad.to(tl.float32) * out, axis=1)
    place = (b * M + m) * N + n
    tl.store(delta_ptr + place, delta, mask=exists)
    lse = tl.load(lse_ptr + place, mask=exists, other=float('inf')) * LOG2_E

    dq = tl.zeros([TH * TW, DP], tl.float32)
    table = tl.zeros([CELLS, CELLS], tl.float32)
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
        dprob = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
        dscore = tl.exp2(score - lse[:, None]) * (dprob - delta[:, None])
        dq += product(dscore, k, PRECISION)
        # Pairs of one cell are summed along x, then along y.
        pairs = tl.reshape(dscore, [TH, TW, BH, BW])
        pairs = tl.reshape(tl.permute(pairs, (0, 2, 1, 3)), [TH * BH, TW * BW])
        along_x = hits(first_x, x0, TW * BW, BW, K, CELLS).to(k.dtype)
        along_y = tl.trans(hits(first_y, y0, TH * BH, BH, K, CELLS))
        part = product(pairs, along_x, 'tf32')
        if PRECISION == 'tf32x3':  # add what rounding leaves; hits are exact
            rest = pairs - round_operand(pairs, 'tf32')
            part = tl.dot(rest, along_x, part, input_precision='tf32')
            rest = part - round_operand(part, 'tf32')
            table = tl.dot(along_y, rest, table, input_precision='tf32')
        part = round_operand(part, 'tf32')
        table = tl.dot(along_y, part, table, input_precision='tf32')
    store_rows(dq_ptr, dq * scale, n * (M * D), exists, D, DP)
    cell = tl.arange(0, CELLS)
    exists = cell < 2 * K - 1
    drpb_ptr += ((b * tiles + tile) * M + m) * (2 * K - 1) * (2 * K - 1)
    place = table_place(cell[:, None], cell[None, :], K)
    tl.store(drpb_ptr + place, table, mask=exists[:, None] & exists[None, :])


@triton.jit
def queries_of(first, side, K: tl.constexpr, SIZE: tl.constexpr):
    """Return the range of the queries that see SIZE keys from `first` on a side."""
    last = tl.minimum(first + SIZE, side) - 1
    start = tl.where(first < K, 0, first - K // 2)
    return start, tl.where(last >= side - K, side, last + K // 2 + 1)


@kernel
def _bwd_keys_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, rpb_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    M, H, W, scale,
    K: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TH: tl.constexpr,
    TW: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, PRECISION: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """Write dk and dv of a tile of keys, in a loop over blocks of queries."""
    b, m, _, y0, x0 = program_tile(M, H, W, TH, TW)
    N = H * W
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    rpb_ptr += m * (2 * K - 1) * (2 * K - 1)
    lse_ptr += (b * M + m) * N
    delta_ptr += (b * M + m) * N
    key_y, key_x, n, exists = pixels(y0, x0, H, W, W, TH, TW)
    keys = table_place(key_y, key_x, K)[:, None]
    k = load_operand(k_ptr, n * k_n_stride, exists, D, DP, NATIVE)
    v = load_operand(v_ptr, n * v_n_stride, exists, D, DP, NATIVE)

    dk = tl.zeros([TH * TW, DP], tl.float32)
    dv = tl.zeros([TH * TW, DP], tl.float32)
    start_y, end_y = queries_of(y0, H, K, TH)
    start_x, end_x = queries_of(x0, W, K, TW)
    columns = tl.cdiv(end_x - start_x, BW)
    for block in range(columns * tl.cdiv(end_y - start_y, BH)):
        first_y = start_y + block // columns * BH
        first_x = start_x + block % columns * BW
        y, x, query, asks = pixels(first_y, first_x, end_y, end_x, W, BH, BW)
        q = load_operand(q_ptr, query * q_n_stride, asks, D, DP, NATIVE)
        grad = load_operand(grad_ptr, query * g_n_stride, asks, D, DP, NATIVE)
        lse = tl.load(lse_ptr + query, mask=asks, other=float('inf')) * LOG2_E
        delta = tl.load(delta_ptr + query, mask=asks, other=0.0)
        top, left, queries = query_windows(y, x, H, W, K)
        top, left, queries = top[None, :], left[None, :], queries[None, :]
        score = pair_scores(
            k, q, queries, keys, top, left, key_y[:, None], key_x[:, None],
            rpb_ptr, scale, K, PRECISION,
        )  # fmt: skip
        prob = tl.exp2(score - lse[None, :])
        dprob = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
        dv += product(prob, grad, PRECISION)
        dk += product(prob * (dprob - delta[None, :]), q, PRECISION)
    rows = n * (M * D)
    store_rows(dk_ptr + (b * N * M + m) * D, dk * scale, rows, exists, D, DP)
    store_rows(dv_ptr + (b * N * M + m) * D, dv, rows, exists, D, DP)
