"""Hard masks in Triton: backward of the patches.

The stencil is symmetric, so the gradients of keys and values are gathered from queries,
just as the gradients of queries are gathered from keys.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_rows, store_rows
from ..triton.softmax import LOG2_E
from .triton_stencil import (
    has_tap,
    load_bias,
    load_special,
    program_tile,
    sees_few,
)


@triton.jit
def store_sum(ptr, x, D: tl.constexpr, DP: tl.constexpr):
    """Store the sum of the rows of x [BN, DP]."""
    d = tl.arange(0, DP)
    tl.store(ptr + d, tl.sum(x, axis=0), mask=d < D)


@kernel
def _bwd_queries_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, out_ptr, bias_ptr, lse_ptr, delta_ptr, rest_ptr,
    dq_ptr, sums_ptr, dbias_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    M, H, W, scale,
    S: tl.constexpr, R: tl.constexpr, TAPS: tl.constexpr, ZERO: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Write patches of dq, of delta = grad . out (B, M, N) and of the weights of tokens
    outside the masks, rest (B, M, N), and this tile's shares of sums over queries. sums
    (B, M, 2 * S + ZERO, tiles, D) holds dk and dv of each special token in turn, then
    the gradient of all values. dbias is (B, tiles, M, R * R)."""
    b, m, tile, y, x, exists = program_tile(M, H, W, TH, TW)
    tiles = tl.cdiv(W, TW) * tl.cdiv(H, TH)
    N = S + H * W
    n = S + y * W + x
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
    q = load_rows(q_ptr, n * q_n_stride, exists, D, DP) * (scale * LOG2_E)
    grad = load_rows(grad_ptr, n * g_n_stride, exists, D, DP)
    out = load_rows(out_ptr, n * (M * D), exists, D, DP)
    delta = tl.sum(grad * out, axis=1)
    place = (b * M + m) * N + n
    tl.store(delta_ptr + place, delta, mask=exists)
    lse = tl.load(lse_ptr + place, mask=exists, other=0.0) * LOG2_E
    rest = tl.zeros([TH * TW], tl.float32)
    if ZERO:
        rest = tl.where(sees_few(y, x, H, W, R) & exists, tl.exp2(-lse), 0.0)
        tl.store(rest_ptr + place, rest, mask=exists)
        store_sum(sums_ptr + 2 * S * tiles * D, rest[:, None] * grad, D, DP)

    dq = tl.zeros([TH * TW, DP], tl.float32)
    for first in range(0, R * R, TAPS):
        for i in tl.static_range(TAPS):
            dy, dx = (first + i) // R - R // 2, (first + i) % R - R // 2
            seen = has_tap(y, x, exists, dy, dx, H, W)
            token = n + dy * W + dx
            k = load_rows(k_ptr, token * k_n_stride, seen, D, DP)
            v = load_rows(v_ptr, token * v_n_stride, seen, D, DP)
            score = tl.sum(q * k, axis=1) + load_bias(bias_ptr, first + i)
            dscore = tl.exp2(score - lse) * (tl.sum(grad * v, axis=1) - delta)
            dscore = tl.where(seen, dscore, 0.0)
            dq += dscore[:, None] * k
            if bias_ptr is not None:
                tl.store(dbias_ptr + first + i, tl.sum(dscore, axis=0))
    for token in tl.static_range(S):
        k = load_special(k_ptr, token, k_n_stride, D, DP)
        v = load_special(v_ptr, token, v_n_stride, D, DP)
        prob = tl.exp2(tl.sum(q * k, axis=1) - lse)
        dscore = tl.where(exists, prob * (tl.sum(grad * v, axis=1) - delta), 0.0)
        dq += dscore[:, None] * k
        weight = tl.where(exists, prob - rest, 0.0)
        ptr = sums_ptr + 2 * token * tiles * D
        store_sum(ptr, dscore[:, None] * q / LOG2_E, D, DP)
        store_sum(ptr + tiles * D, weight[:, None] * grad, D, DP)
    store_rows(dq_ptr, dq * scale, n * (M * D), exists, D, DP)


@kernel
def _bwd_keys_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, bias_ptr, lse_ptr, delta_ptr, rest_ptr, sums_ptr,
    dk_ptr, dv_ptr, sums_q_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    M, H, W, scale,
    S: tl.constexpr, R: tl.constexpr, TAPS: tl.constexpr, ZERO: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Write patches of dk and dv, given the sums over queries (B, M, 2 * S + ZERO, D),
    and this tile's shares of dq of special tokens, sums_q (B, M, S, tiles, D)."""
    b, m, tile, y, x, exists = program_tile(M, H, W, TH, TW)
    tiles = tl.cdiv(W, TW) * tl.cdiv(H, TH)
    N = S + H * W
    n = S + y * W + x
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
    if ZERO:
        rest_ptr += (b * M + m) * N
    if bias_ptr is not None:
        bias_ptr += m * (R * R)
    k = load_rows(k_ptr, n * k_n_stride, exists, D, DP) * (scale * LOG2_E)
    v = load_rows(v_ptr, n * v_n_stride, exists, D, DP)

    dk = tl.zeros([TH * TW, DP], tl.float32)
    dv = tl.zeros([TH * TW, DP], tl.float32)
    for first in range(0, R * R, TAPS):
        for i in tl.static_range(TAPS):
            dy, dx = (first + i) // R - R // 2, (first + i) % R - R // 2
            seen = has_tap(y, x, exists, dy, dx, H, W)
            token = n + dy * W + dx
            q = load_rows(q_ptr, token * q_n_stride, seen, D, DP)
            grad = load_rows(grad_ptr, token * g_n_stride, seen, D, DP)
            lse = tl.load(lse_ptr + token, mask=seen, other=0.0) * LOG2_E
            delta = tl.load(delta_ptr + token, mask=seen, other=0.0)
            # A query's tap back to the key is the opposite one.
            bias = load_bias(bias_ptr, R * R - 1 - (first + i))
            prob = tl.exp2(tl.sum(q * k, axis=1) + bias - lse)
            prob = tl.where(seen, prob, 0.0)
            dk += (prob * (tl.sum(grad * v, axis=1) - delta))[:, None] * q
            if ZERO:
                prob -= tl.load(rest_ptr + token, mask=seen, other=0.0)
            dv += prob[:, None] * grad
    for token in tl.static_range(S):
        q = load_special(q_ptr, token, q_n_stride, D, DP)
        grad = load_special(grad_ptr, token, g_n_stride, D, DP)
        lse = tl.load(lse_ptr + token) * LOG2_E
        prob = tl.where(exists, tl.exp2(tl.sum(q * k, axis=1) - lse), 0.0)
        dscore = prob * (tl.sum(grad * v, axis=1) - tl.load(delta_ptr + token))
        dk += dscore[:, None] * q
        dv += prob[:, None] * grad
        ptr = sums_q_ptr + token * tiles * D
        store_sum(ptr, dscore[:, None] * k / LOG2_E, D, DP)
    if ZERO:
        d = tl.arange(0, DP)
        sums_ptr += ((b * M + m) * (2 * S + 1) + 2 * S) * D
        dv += tl.load(sums_ptr + d, mask=d < D, other=0.0)[None, :]
    store_rows(dk_ptr, dk * scale, n * (M * D), exists, D, DP)
    store_rows(dv_ptr, dv, n * (M * D), exists, D, DP)
