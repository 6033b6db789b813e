"""Dense rows of special tokens of hard masks, and sums over tokens, in Triton.

Patches need the mean of v for the tokens outside their masks. It is the row of a query
of zeros.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_rows


@triton.jit
def load_row(ptr, D: tl.constexpr, DP: tl.constexpr):
    """Load one row [DP] of one head in fp32."""
    d = tl.arange(0, DP)
    return tl.load(ptr + d, mask=d < D, other=0.0).to(tl.float32)


@kernel
def _special_split_kernel(
    q_ptr, k_ptr, v_ptr, stats_ptr, acc_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, N, M, S, rows, splits, blocks, scale,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write a split's share of one row of attention to all tokens. stats (B, M, rows,
    splits, 2) holds the largest score and the sum of exponentials, acc (B, M, rows,
    splits, D) the weighted values. Row S belongs to a query of zeros."""
    pid = tl.program_id(0)
    m, split = (pid % M).to(tl.int64), pid // M % splits
    row = pid // (M * splits) % rows
    b = (pid // (M * splits * rows)).to(tl.int64)
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    q_ptr += b * q_b_stride + m * q_m_stride + row * q_n_stride
    d = tl.arange(0, DP)
    q = tl.load(q_ptr + d, mask=d < tl.where(row < S, D, 0), other=0.0)
    q = q.to(tl.float32) * scale
    num_keys = tl.where(row < S, N, 0)

    # Each place of a block keeps statistics of its own until the end.
    high = tl.full([BN], float('-inf'), tl.float32)
    total = tl.zeros([BN], tl.float32)
    acc = tl.zeros([BN, DP], tl.float32)
    start = split * blocks * BN
    for first in range(start, tl.minimum(start + blocks * BN, N), BN):
        tokens = (first + tl.arange(0, BN)).to(tl.int64)
        exists = tokens < N
        k = load_rows(k_ptr, tokens * k_n_stride, tokens < num_keys, D, DP)
        score = tl.where(exists, tl.sum(q[None, :] * k, axis=1), float('-inf'))
        v = load_rows(v_ptr, tokens * v_n_stride, exists, D, DP)
        new = tl.maximum(high, score)
        shift = tl.where(new == float('-inf'), 0.0, new)
        weight, keep = tl.exp(score - shift), tl.exp(high - shift)
        total = total * keep + weight
        acc = acc * keep[:, None] + weight[:, None] * v
        high = new
    top = tl.max(high, axis=0)
    keep = tl.exp(high - top)
    out = ((b * M + m) * rows + row) * splits + split
    tl.store(stats_ptr + 2 * out, top)
    tl.store(stats_ptr + 2 * out + 1, tl.sum(total * keep, axis=0))
    acc = tl.sum(acc * keep[:, None], axis=0)
    tl.store(acc_ptr + out * D + d, acc, mask=d < D)


@kernel
def _special_merge_kernel(
    stats_ptr, acc_ptr, out_ptr, lse_ptr, mean_ptr, N, M, S, rows, splits,
    D: tl.constexpr, DP: tl.constexpr, SP: tl.constexpr,
):  # fmt: skip
    """Merge the shares of splits to the special rows of out (B, N, M, D) and lse (B, M,
    N), and to the mean of v (B, M, D)."""
    pid = tl.program_id(0)
    row, m = pid % rows, pid // rows % M
    b = (pid // (rows * M)).to(tl.int64)
    split = tl.arange(0, SP)
    first = (b * M + m) * rows + row
    stats_ptr += (first * splits + split) * 2
    high = tl.load(stats_ptr, mask=split < splits, other=float('-inf'))
    total = tl.load(stats_ptr + 1, mask=split < splits, other=0.0)
    acc = load_rows(acc_ptr, (first * splits + split) * D, split < splits, D, DP)
    top = tl.max(high, axis=0)
    keep = tl.exp(high - top)
    total = tl.sum(total * keep, axis=0)
    acc = tl.sum(acc * keep[:, None], axis=0) / total
    d = tl.arange(0, DP)
    if row < S:
        out = acc.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + ((b * N + row) * M + m) * D + d, out, mask=d < D)
        tl.store(lse_ptr + (b * M + m) * N + row, top + tl.log(total))
    elif mean_ptr is not None:
        tl.store(mean_ptr + (b * M + m) * D + d, acc, mask=d < D)


@kernel
def _delta_kernel(
    grad_ptr, out_ptr, delta_ptr, g_b_stride, g_n_stride, g_m_stride,
    N, M, rows, blocks, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write delta = grad . out of the first `rows` tokens, (B, M, N)."""
    pid = tl.program_id(0)
    m, block = (pid % M).to(tl.int64), pid // M % blocks
    b = (pid // (M * blocks)).to(tl.int64)
    tokens = (block * BN + tl.arange(0, BN)).to(tl.int64)
    exists = tokens < rows
    grad_ptr += b * g_b_stride + m * g_m_stride
    grad = load_rows(grad_ptr, tokens * g_n_stride, exists, D, DP)
    out = load_rows(out_ptr + (b * N * M + m) * D, tokens * (M * D), exists, D, DP)
    delta = tl.sum(grad * out, axis=1)
    tl.store(delta_ptr + (b * M + m) * N + tokens, delta, mask=exists)


@kernel
def _bwd_special_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, sums_ptr, sums_q_ptr,
    dq_ptr, dk_ptr, dv_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, g_b_stride, g_n_stride, g_m_stride,
    N, M, S, scale, ZERO: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Write dq, dk and dv of a special token from the sums over patches, sums (B, M,
    2 * S + ZERO, D) and sums_q (B, M, S, D), and from the other special tokens."""
    pid = tl.program_id(0)
    token, m = pid % S, (pid // S % M).to(tl.int64)
    b = (pid // (S * M)).to(tl.int64)
    q_ptr += b * q_b_stride + m * q_m_stride
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    grad_ptr += b * g_b_stride + m * g_m_stride
    lse_ptr += (b * M + m) * N
    delta_ptr += (b * M + m) * N
    sums_ptr += (b * M + m) * (2 * S + ZERO) * D
    q = load_row(q_ptr + token * q_n_stride, D, DP) * scale
    k = load_row(k_ptr + token * k_n_stride, D, DP) * scale
    v = load_row(v_ptr + token * v_n_stride, D, DP)
    grad = load_row(grad_ptr + token * g_n_stride, D, DP)
    lse, delta = tl.load(lse_ptr + token), tl.load(delta_ptr + token)

    dq = load_row(sums_q_ptr + ((b * M + m) * S + token) * D, D, DP)
    dk = load_row(sums_ptr + 2 * token * D, D, DP)
    dv = load_row(sums_ptr + (2 * token + 1) * D, D, DP)
    if ZERO:
        dv += load_row(sums_ptr + 2 * S * D, D, DP)
    for other in range(S):
        other_k = load_row(k_ptr + other * k_n_stride, D, DP)
        other_v = load_row(v_ptr + other * v_n_stride, D, DP)
        prob = tl.exp(tl.sum(q * other_k, axis=0) - lse)
        dq += scale * prob * (tl.sum(grad * other_v, axis=0) - delta) * other_k
        other_q = load_row(q_ptr + other * q_n_stride, D, DP)
        other_grad = load_row(grad_ptr + other * g_n_stride, D, DP)
        prob = tl.exp(tl.sum(other_q * k, axis=0) - tl.load(lse_ptr + other))
        dprob = tl.sum(other_grad * v, axis=0) - tl.load(delta_ptr + other)
        dk += scale * prob * dprob * other_q
        dv += prob * other_grad
    d = tl.arange(0, DP)
    out = ((b * N + token) * M + m) * D + d
    tl.store(dq_ptr + out, dq.to(dq_ptr.dtype.element_ty), mask=d < D)
    tl.store(dk_ptr + out, dk.to(dk_ptr.dtype.element_ty), mask=d < D)
    tl.store(dv_ptr + out, dv.to(dv_ptr.dtype.element_ty), mask=d < D)
