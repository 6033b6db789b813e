"""Soft masks in Triton, in the manner of FlashAttention, which never stores the map.

The factor of the mask follows from the places of queries and keys. A program takes a
block of queries, or of keys and values, of one head, and loops over the others.
README.md has the equations. Scores are in units of log 2.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_operand, program_block, store_rows
from ..triton.softmax import LOG2_E, add_block, store_attention
from ..triton.tf32 import product


@triton.jit
def products(
    x, y, x_ptr, y_ptr, x_rows, y_rows, x_mask, y_mask,
    D: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return x y^T, of every row with every row.

    With BD < DP the operands are read again, BD channels at a time, because wide ones
    in fp32 do not fit in registers.
    """
    if BD == DP:
        out = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    else:
        out = tl.zeros([x_rows.shape[0], y_rows.shape[0]], tl.float32)
        for first in range(0, D, BD):
            d = first + tl.arange(0, BD)
            x_mask_d = x_mask[:, None] & (d < D)[None, :]
            y_mask_d = y_mask[:, None] & (d < D)[None, :]
            x_d = tl.load(
                x_ptr + x_rows[:, None] + d[None, :], mask=x_mask_d, other=0.0
            )
            y_d = tl.load(
                y_ptr + y_rows[:, None] + d[None, :], mask=y_mask_d, other=0.0
            )
            out = tl.dot(x_d, tl.trans(y_d), out, input_precision=PRECISION)
    return out


@triton.jit
def may_see(q0, k0, W, S, R: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr):
    """Return whether any pair of BQ queries and BK keys can be in the mask."""
    reach = (R // 2) * (W + 1)
    in_band = (k0 <= q0 + BQ - 1 + reach) & (q0 <= k0 + BK - 1 + reach)
    return in_band | (q0 < S) | (k0 < S)


@triton.jit
def places(first, W, S, BLOCK: tl.constexpr):
    """Return y and x of tokens. Special tokens have NaN, which is near all places.

    The product with 1 / W is exact enough for grids of up to 2**20 tokens.
    """
    place = (first - S).to(tl.float32) + tl.arange(0, BLOCK).to(tl.float32)
    place = tl.where(place < 0, float('nan'), place)
    y = tl.floor(place * (1.0 / W) + 0.5 / W)
    return y, place - y * W


@triton.jit
def choose(
    inside, outside, y, x, q0, k0, W, S,
    R: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return `inside` in the mask of queries at y and x, and `outside` elsewhere."""
    chosen = outside
    if may_see(q0, k0, W, S, R, BQ, BK):
        other_y, other_x = places(k0, W, S, BK)
        far = tl.abs(y[:, None] - other_y[None, :]) > R // 2
        far = far | (tl.abs(x[:, None] - other_x[None, :]) > R // 2)
        chosen = tl.where(far, outside, inside)
    return chosen


@kernel
def _soft_fwd_kernel(
    q_ptr, k_ptr, v_ptr, alpha_ptr, out_ptr, lse_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, N, M, W, S, blocks, scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write out (B, N, M, D) and lse (B, M, N)."""
    b, m, block = program_block(M, blocks)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    scale *= LOG2_E
    alpha = tl.load(alpha_ptr + m).to(tl.float32) * scale
    queries = block * BQ + tl.arange(0, BQ)
    rows, asks = queries.to(tl.int64), queries < N
    q_rows = rows * q_n_stride
    q = load_operand(q_ptr, q_rows, asks, D, DP, NATIVE)
    y, x = places(block * BQ, W, S, BQ)

    high = tl.full([BQ], float('-inf'), tl.float32)
    total = tl.zeros([BQ], tl.float32)
    acc = tl.zeros([BQ, DP], tl.float32)
    for first in range(0, N, BK):
        keys = first + tl.arange(0, BK)
        cols, exist = keys.to(tl.int64), keys < N
        k_rows = cols * k_n_stride
        k = load_operand(k_ptr, k_rows, exist, D, DP, NATIVE)
        v = load_operand(v_ptr, cols * v_n_stride, exist, D, DP, NATIVE)
        score = products(
            q, k, q_ptr, k_ptr, q_rows, k_rows, asks, exist, D, DP, BD, PRECISION
        )
        score = choose(
            scale * score, alpha * score, y, x, block * BQ, first, W, S, R, BQ, BK
        )
        score += tl.where(exist, 0.0, float('-inf'))[None, :]
        high, total, acc = add_block(high, total, acc, score, v, PRECISION)
    store_attention(out_ptr, lse_ptr, high, total, acc, b, m, rows, asks, N, M, D, DP)


@kernel
def _soft_bwd_queries_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, alpha_ptr, lse_ptr, delta_ptr, dq_ptr, dalpha_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    N, M, W, S, blocks, scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write dq and this block's share of dalpha (B, M, blocks)."""
    b, m, block = program_block(M, blocks)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    dq_ptr += (b * N * M + m) * D
    alpha = tl.load(alpha_ptr + m).to(tl.float32) * scale
    queries = block * BQ + tl.arange(0, BQ)
    rows, asks = queries.to(tl.int64), queries < N
    q_rows, g_rows = rows * q_n_stride, rows * g_n_stride
    q = load_operand(q_ptr, q_rows, asks, D, DP, NATIVE)
    grad = load_operand(grad_ptr, g_rows, asks, D, DP, NATIVE)
    stats = (b * M + m) * N + rows
    lse = tl.load(lse_ptr + stats, mask=asks, other=0.0) * LOG2_E
    delta = tl.load(delta_ptr + stats, mask=asks, other=0.0)

    y, x = places(block * BQ, W, S, BQ)
    dq = tl.zeros([BQ, DP], tl.float32)
    dalpha = tl.zeros([BQ], tl.float32)
    for first in range(0, N, BK):
        keys = first + tl.arange(0, BK)
        cols, exist = keys.to(tl.int64), keys < N
        k_rows, v_rows = cols * k_n_stride, cols * v_n_stride
        k = load_operand(k_ptr, k_rows, exist, D, DP, NATIVE)
        v = load_operand(v_ptr, v_rows, exist, D, DP, NATIVE)
        raw = products(
            q, k, q_ptr, k_ptr, q_rows, k_rows, asks, exist, D, DP, BD, PRECISION
        )
        ones = tl.full([BQ, BK], 1.0, tl.float32)
        outside = choose(0 * ones, ones, y, x, block * BQ, first, W, S, R, BQ, BK)
        factor = scale + outside * (alpha - scale)
        score = raw * (factor * LOG2_E)
        prob = tl.where(exist[None, :], tl.exp2(score - lse[:, None]), 0.0)
        dprob = products(
            grad, v, grad_ptr, v_ptr, g_rows, v_rows, asks, exist, D, DP, BD, PRECISION
        )
        dscore = prob * (dprob - delta[:, None])
        dalpha += tl.sum(dscore * outside * raw, axis=1)
        dq += product(dscore * factor, k, PRECISION)
    store_rows(dq_ptr, dq, rows * (M * D), asks, D, DP)
    tl.store(dalpha_ptr + (b * M + m) * blocks + block, tl.sum(dalpha, axis=0) * scale)


@kernel
def _soft_bwd_keys_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, alpha_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    N, M, W, S, blocks, scale,
    R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BD: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Write dk and dv. Maps are transposed, [BK, BQ], and the mask is symmetric."""
    b, m, block = program_block(M, blocks)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    lse_ptr += (b * M + m) * N
    delta_ptr += (b * M + m) * N
    dk_ptr += (b * N * M + m) * D
    dv_ptr += (b * N * M + m) * D
    alpha = tl.load(alpha_ptr + m).to(tl.float32) * scale
    keys = block * BK + tl.arange(0, BK)
    cols, exist = keys.to(tl.int64), keys < N
    k_rows, v_rows = cols * k_n_stride, cols * v_n_stride
    k = load_operand(k_ptr, k_rows, exist, D, DP, NATIVE)
    v = load_operand(v_ptr, v_rows, exist, D, DP, NATIVE)

    y, x = places(block * BK, W, S, BK)
    dk = tl.zeros([BK, DP], tl.float32)
    dv = tl.zeros([BK, DP], tl.float32)
    for first in range(0, N, BQ):
        queries = first + tl.arange(0, BQ)
        rows, asks = queries.to(tl.int64), queries < N
        q_rows, g_rows = rows * q_n_stride, rows * g_n_stride
        q = load_operand(q_ptr, q_rows, asks, D, DP, NATIVE)
        grad = load_operand(grad_ptr, g_rows, asks, D, DP, NATIVE)
        # An lse of inf gives queries that do not exist no weight.
        lse = tl.load(lse_ptr + rows, mask=asks, other=float('inf')) * LOG2_E
        delta = tl.load(delta_ptr + rows, mask=asks, other=0.0)
        score = products(
            k, q, k_ptr, q_ptr, k_rows, q_rows, exist, asks, D, DP, BD, PRECISION
        )
        ones = tl.full([BK, BQ], 1.0, tl.float32)
        factor = choose(
            scale * ones, alpha * ones, y, x, block * BK, first, W, S, R, BK, BQ
        )
        prob = tl.exp2(score * (factor * LOG2_E) - lse[None, :])
        dv += product(prob, grad, PRECISION)
        dprob = products(
            v, grad, v_ptr, grad_ptr, v_rows, g_rows, exist, asks, D, DP, BD, PRECISION
        )
        dscore = prob * (dprob - delta[None, :])
        dk += product(dscore * factor, q, PRECISION)
    store_rows(dk_ptr, dk, cols * (M * D), exist, D, DP)
    store_rows(dv_ptr, dv, cols * (M * D), exist, D, DP)
