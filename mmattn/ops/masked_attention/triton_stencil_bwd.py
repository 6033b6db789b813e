"""Hard masks in Triton: backward of the patches.

The stencil is symmetric, so the gradients of keys and values are gathered from queries,
just as those of queries are gathered from keys.
"""

import triton
import triton.language as tl

from ..triton_jit import kernel
from ..triton_rows import load_rows, store_rows
from .triton_stencil import (
    excess,
    load_bias,
    load_tap,
    program_tile,
    sees_few,
    tap_places,
)


@triton.jit
def store_sum(ptr, x, D: tl.constexpr, DP: tl.constexpr):
    """Store the sum of the rows of x [BN, DP]."""
    d = tl.arange(0, DP)
    tl.store(ptr + d, tl.sum(x, axis=0), mask=d < D)


@kernel
def _bwd_queries_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, out_ptr, bias_ptr, lse_ptr, delta_ptr,
    dq_ptr, sums_ptr, dbias_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    M, H, W, num_taps, scale,
    S: tl.constexpr, R: tl.constexpr, ZERO: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Write patches of dq and of delta = grad . out (B, M, N), and this tile's shares
    of sums over queries. sums (B, M, 2 * S + ZERO, tiles, D) holds dk and dv of each
    special token in turn, then the gradient of all values. dbias is (B, tiles, M,
    R * R)."""
    b, m, tile, y, x, exists = program_tile(M, H, W, TH, TW)
    tiles = tl.cdiv(W, TW) * tl.cdiv(H, TH)
    N = S + H * W
    rows = (S + y * W + x).to(tl.int64)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    out_ptr += (b * N * M + m) * D
    dq_ptr += (b * N * M + m) * D
    if 2 * S + ZERO > 0:
        sums_ptr += ((b * M + m) * (2 * S + ZERO) * tiles + tile) * D
    if bias_ptr is not None:
        bias_ptr += m * (R * R)
        dbias_ptr += ((b * tiles + tile) * M + m) * (R * R)
    few = sees_few(y, x, H, W, R)
    q = load_rows(q_ptr, rows * q_n_stride, exists, D, DP) * scale
    grad = load_rows(grad_ptr, rows * g_n_stride, exists, D, DP)
    out = load_rows(out_ptr, rows * (M * D), exists, D, DP)
    delta = tl.sum(grad * out, axis=1)
    tl.store(delta_ptr + (b * M + m) * N + rows, delta, mask=exists)
    lse = tl.load(lse_ptr + (b * M + m) * N + rows, mask=exists, other=0.0)
    if ZERO:
        others = tl.where(few & exists, tl.exp(-lse), 0.0)
        store_sum(sums_ptr + 2 * S * tiles * D, others[:, None] * grad, D, DP)

    dq = tl.zeros([TH * TW, DP], tl.float32)
    for tap in range(num_taps):
        seen, k, v, score = load_tap(
            q, k_ptr, v_ptr, bias_ptr, tap, y, x, exists, H, W, k_n_stride, v_n_stride,
            S, R, D, DP,
        )  # fmt: skip
        dprob = tl.sum(grad * v, axis=1)
        dscore = tl.where(seen, tl.exp(score - lse) * (dprob - delta), 0.0)
        dq += dscore[:, None] * k
        if bias_ptr is not None:
            if tap < R * R:
                tl.store(dbias_ptr + tap, tl.sum(dscore, axis=0))
        if S > 0:
            if tap >= R * R:
                weight = tl.where(seen, excess(score, lse, few, ZERO), 0.0)
                ptr = sums_ptr + 2 * (tap - R * R) * tiles * D
                store_sum(ptr, dscore[:, None] * q, D, DP)
                store_sum(ptr + tiles * D, weight[:, None] * grad, D, DP)
    store_rows(dq_ptr, dq * scale, rows * (M * D), exists, D, DP)


@kernel
def _bwd_keys_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, bias_ptr, lse_ptr, delta_ptr, sums_ptr,
    dk_ptr, dv_ptr, sums_q_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    M, H, W, num_taps, scale,
    S: tl.constexpr, R: tl.constexpr, ZERO: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Write patches of dk and dv, given the sums over queries (B, M, 2 * S + ZERO, D),
    and this tile's shares of dq of special tokens, sums_q (B, M, S, tiles, D)."""
    b, m, tile, y, x, exists = program_tile(M, H, W, TH, TW)
    tiles = tl.cdiv(W, TW) * tl.cdiv(H, TH)
    N = S + H * W
    cols = (S + y * W + x).to(tl.int64)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    lse_ptr += (b * M + m) * N
    delta_ptr += (b * M + m) * N
    dk_ptr += (b * N * M + m) * D
    dv_ptr += (b * N * M + m) * D
    if S > 0:
        sums_q_ptr += ((b * M + m) * S * tiles + tile) * D
    if bias_ptr is not None:
        bias_ptr += m * (R * R)
    k = load_rows(k_ptr, cols * k_n_stride, exists, D, DP) * scale
    v = load_rows(v_ptr, cols * v_n_stride, exists, D, DP)

    dk = tl.zeros([TH * TW, DP], tl.float32)
    dv = tl.zeros([TH * TW, DP], tl.float32)
    for tap in range(num_taps):
        y_q, x_q, tokens, seen = tap_places(tap, y, x, exists, H, W, S, R)
        few = tl.where(tap < R * R, sees_few(y_q, x_q, H, W, R), False)
        q = load_rows(q_ptr, tokens * q_n_stride, seen, D, DP)
        # A query's tap back to the key is the opposite one.
        score = tl.sum(q * k, axis=1) + load_bias(bias_ptr, R * R - 1 - tap, R)
        grad = load_rows(grad_ptr, tokens * g_n_stride, seen, D, DP)
        lse = tl.load(lse_ptr + tokens, mask=seen, other=0.0)
        delta = tl.load(delta_ptr + tokens, mask=seen, other=0.0)
        dprob = tl.sum(grad * v, axis=1)
        dscore = tl.where(seen, tl.exp(score - lse) * (dprob - delta), 0.0)
        weight = tl.where(seen, excess(score, lse, few, ZERO), 0.0)
        dk += dscore[:, None] * q
        dv += weight[:, None] * grad
        if S > 0:
            if tap >= R * R:
                ptr = sums_q_ptr + (tap - R * R) * tiles * D
                store_sum(ptr, dscore[:, None] * k, D, DP)
    if ZERO:
        d = tl.arange(0, DP)
        sums_ptr += ((b * M + m) * (2 * S + 1) + 2 * S) * D
        dv += tl.load(sums_ptr + d, mask=d < D, other=0.0)[None, :]
    store_rows(dk_ptr, dk * scale, cols * (M * D), exists, D, DP)
    store_rows(dv_ptr, dv, cols * (M * D), exists, D, DP)
