"""Kernels that fold mixing weights into landmarks and unfold gradients, in Triton.

A folded tensor has a row of all channels for each image, mixed head and landmark: those
of the landmark times the weights of the mixed head. Without mixing (E = 0) it has a row
of D channels for each head. In half precision it has two parts, whose sum it is.

A tile has all mixed heads of one image and landmark, and a block of channels: CB of
them, or with E_K = 0 one head. Programs of a split loop leave shares along a new first
axis.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel


@triton.jit
def channels_of(
    block, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, CB: tl.constexpr
):
    """Return the channels of a block, and which exist."""
    c = tl.arange(0, CB)
    if E:
        return block * CB + c, block * CB + c < M * D
    else:
        return block * D + c, c < D


@triton.jit
def places(b, mark, e, c, L, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr):
    """Return the offsets of channels c in rows of mixed heads e, [len(e), len(c)]."""
    if E:
        return ((b * E + e) * L + mark)[:, None] * (M * D) + c[None, :]
    else:
        return (((b * M + c // D) * L + mark) * D + c % D)[None, :] + 0 * e[:, None]


@triton.jit
def row_of(b, mark, e, head, L, M: tl.constexpr, E: tl.constexpr):
    """Return the rows of mixed heads e, or the row of a head without mixing."""
    return (b * E + e) * L + mark if E else (b * M + head + e) * L + mark


@triton.jit
def load_weights(ptr, e, c, mask, e_stride, m_stride, D: tl.constexpr, E: tl.constexpr):
    """Load the weights of channels c for mixed heads e, ones without mixing."""
    if E:
        ptrs = ptr + e[:, None] * e_stride + (c // D * m_stride)[None, :]
        return tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
    else:
        return tl.full([e.shape[0], c.shape[0]], 1.0, tl.float32)


@triton.jit
def exist(e, mask, E: tl.constexpr):
    """Return which of mixed heads e and channels exist, [len(e), len(mask)]."""
    return (e < (E if E else 1))[:, None] & mask[None, :]


@triton.jit
def fold(
    x, w_ptr, out_ptr, b, mark, c, mask, L, lo_stride, e_stride, m_stride,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    """Store x, channels c of landmark mark, times the weights of each mixed head.

    x has the shape [1 or EP, len(c)].
    """
    e = tl.arange(0, EP)
    mask = exist(e, mask, E)
    value = load_weights(w_ptr, e, c, mask, e_stride, m_stride, D, E) * x
    ptrs = out_ptr + places(b, mark, e, c, L, M, D, E)
    high = value.to(out_ptr.dtype.element_ty)
    tl.store(ptrs, high, mask=mask)
    if out_ptr.dtype.element_ty != tl.float32:
        low = (value - high.to(tl.float32)).to(out_ptr.dtype.element_ty)
        tl.store(ptrs + lo_stride, low, mask=mask)


@triton.jit
def load_shares(ptr, place, mask, splits, size):
    """Return the sum of the shares of all programs, in order."""
    total = tl.load(ptr + place, mask=mask, other=0.0)
    for _ in range(1, splits):
        ptr += size
        total += tl.load(ptr + place, mask=mask, other=0.0)
    return total


@triton.jit
def unfold(
    ptr, w_ptr, b, mark, c, mask, L, splits, size, e_stride, m_stride,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    """Return the sum over mixed heads of folded rows times their weights."""
    e = tl.arange(0, EP)
    mask = exist(e, mask, E)
    w = load_weights(w_ptr, e, c, mask, e_stride, m_stride, D, E)
    shares = load_shares(ptr, places(b, mark, e, c, L, M, D, E), mask, splits, size)
    return tl.sum(w * shares, axis=0)


@triton.jit
def load_row(ptr, b, mark, c, mask, b_stride, l_stride, m_stride, D: tl.constexpr):
    """Load channels c of a landmark in fp32, [1, len(c)]."""
    ptr += b * b_stride + mark * l_stride
    row = tl.load(ptr + c // D * m_stride + c % D, mask=mask, other=0.0)
    return row.to(tl.float32)[None, :]


@kernel
def _fold_kernel(
    q_ptr, w1_k_ptr, queries_ptr, k_ptr, w1_q_ptr, keys_ptr,
    context_ptr, w2_q_ptr, values_ptr,
    q_b_stride, q_l_stride, q_m_stride, k_b_stride, k_l_stride, k_m_stride,
    queries_lo_stride, keys_lo_stride, L, scale,
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, EP_K: tl.constexpr,
    E_Q: tl.constexpr, EP_Q: tl.constexpr, CB: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Fold w1 and `scale` into landmarks, and w2_q into a context that is not None."""
    pid = tl.program_id(0)
    c, mask = channels_of(pid % BLOCKS, M, D, E_K, CB)
    mark, b = pid // BLOCKS % L, (pid // BLOCKS // L).to(tl.int64)
    q = load_row(q_ptr, b, mark, c, mask, q_b_stride, q_l_stride, q_m_stride, D)
    fold(
        q * scale, w1_k_ptr, queries_ptr, b, mark, c, mask, L, queries_lo_stride, M, 1,
        M, D, E_K, EP_K,
    )  # fmt: skip
    k = load_row(k_ptr, b, mark, c, mask, k_b_stride, k_l_stride, k_m_stride, D)
    fold(
        k * scale, w1_q_ptr, keys_ptr, b, mark, c, mask, L, keys_lo_stride, M, 1, M, D,
        E_Q, EP_Q,
    )  # fmt: skip
    if context_ptr is not None:
        context = load_row(context_ptr, b, mark, c, mask, L * M * D, M * D, D, D)
        fold(
            context, w2_q_ptr, values_ptr, b, mark, c, mask, L, keys_lo_stride, 1, E_Q,
            M, D, E_Q, EP_Q,
        )  # fmt: skip


@triton.jit
def merge(part_ptr, lse_ptr, place, used, row, row_mask, splits, size, rows):
    """Merge the splits of the key side.

    part (splits, rows, channels) has means of values, and lse (splits, rows) the
    log-sum-exps. Returns both of all splits.
    """
    high = tl.full([row.shape[0]], float('-inf'), tl.float32)
    total = tl.zeros([row.shape[0]], tl.float32)
    mean = tl.zeros([place.shape[0], place.shape[1]], tl.float32)
    for _ in range(splits):
        lse = tl.load(lse_ptr + row, mask=row_mask, other=0.0)
        value = tl.load(part_ptr + place, mask=used, other=0.0)
        new = tl.maximum(high, lse)
        keep, weight = tl.exp2(high - new), tl.exp2(lse - new)
        mean = mean * keep[:, None] + value * weight[:, None]
        total = total * keep + weight
        high = new
        part_ptr += size
        lse_ptr += rows
    return mean / total[:, None], high + tl.log2(total)


@kernel
def _context_kernel(
    part_ptr, lse_part_ptr, w2_k_ptr, w2_q_ptr, context_ptr, values_ptr,
    L, splits, size, rows, lo_stride,
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, EP_K: tl.constexpr,
    E_Q: tl.constexpr, EP_Q: tl.constexpr, CB: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the context (B, L, M, D) of all splits, and w2_q folded into it."""
    pid = tl.program_id(0)
    block, mark, b = pid % BLOCKS, pid // BLOCKS % L, (pid // BLOCKS // L).to(tl.int64)
    c, mask = channels_of(block, M, D, E_K, CB)
    e = tl.arange(0, EP_K)
    used = exist(e, mask, E_K)
    mean, _ = merge(
        part_ptr, lse_part_ptr, places(b, mark, e, c, L, M, D, E_K), used,
        row_of(b, mark, e, block, L, M, E_K), e < (E_K if E_K else 1),
        splits, size, rows,
    )  # fmt: skip
    context = tl.sum(load_weights(w2_k_ptr, e, c, used, 1, E_K, D, E_K) * mean, axis=0)
    tl.store(context_ptr + (b * L + mark) * (M * D) + c, context, mask=mask)
    fold(
        context[None, :], w2_q_ptr, values_ptr, b, mark, c, mask, L, lo_stride, 1, E_Q,
        M, D, E_Q, EP_Q,
    )  # fmt: skip


@kernel
def _bwd_context_kernel(
    dkeys_ptr, dvalues_ptr, w1_q_ptr, w2_q_ptr, part_ptr, lse_part_ptr, w2_k_ptr,
    dk_landmarks_ptr, dcontext_ptr, grads_ptr, mean_ptr, lse_ptr, delta_ptr,
    L, q_splits, q_size, k_splits, k_size, rows, lo_stride, scale,
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, EP_K: tl.constexpr,
    E_Q: tl.constexpr, EP_Q: tl.constexpr, CB: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Unfold the gradients of the query side, and fold the gradients of the context.

    Writes the gradients of k_landmarks and of the context (B, L, M, D), w2_k folded
    into the latter, the means of values and log-sum-exps of all splits of the key side,
    and delta, the products of the folded gradient's rows with these means.

    In float16 a row beyond its range is divided by a power of two, as is its delta. The
    quotient of the log-sum-exps multiplies the maps instead.
    """
    SCALES: tl.constexpr = grads_ptr.dtype.element_ty == tl.float16
    pid = tl.program_id(0)
    first, stop, i = 0, BLOCKS, pid
    if not E_K:  # a head of a program
        first, stop, i = pid % BLOCKS, pid % BLOCKS + 1, pid // BLOCKS
    mark, b = i % L, (i // L).to(tl.int64)
    e = tl.arange(0, EP_K)
    row, row_mask = row_of(b, mark, e, first, L, M, E_K), e < (E_K if E_K else 1)
    lse = tl.zeros([EP_K], tl.float32)
    delta = tl.zeros([EP_K], tl.float32)
    high = tl.zeros([EP_K], tl.float32)
    for block in range(first, stop):
        c, mask = channels_of(block, M, D, E_K, CB)
        out = (b * L + mark) * (M * D) + c
        dk = unfold(
            dkeys_ptr, w1_q_ptr, b, mark, c, mask, L, q_splits, q_size, M, 1, M, D,
            E_Q, EP_Q,
        )  # fmt: skip
        dk = (dk * scale).to(dk_landmarks_ptr.dtype.element_ty)
        tl.store(dk_landmarks_ptr + out, dk, mask=mask)
        grad = unfold(
            dvalues_ptr, w2_q_ptr, b, mark, c, mask, L, q_splits, q_size, 1, E_Q, M,
            D, E_Q, EP_Q,
        )  # fmt: skip
        tl.store(dcontext_ptr + out, grad, mask=mask)
        used = exist(e, mask, E_K)
        place = places(b, mark, e, c, L, M, D, E_K)
        mean, lse = merge(
            part_ptr, lse_part_ptr, place, used, row, row_mask, k_splits, k_size, rows
        )
        tl.store(mean_ptr + place, mean, mask=used)
        w = load_weights(w2_k_ptr, e, c, used, 1, E_K, D, E_K)
        delta += tl.sum(w * grad[None, :] * mean, axis=1)
        if SCALES:
            high = tl.maximum(high, tl.max(tl.abs(w * grad[None, :]), axis=1))
        else:
            fold(
                grad[None, :], w2_k_ptr, grads_ptr, b, mark, c, mask, L, lo_stride, 1,
                E_K, M, D, E_K, EP_K,
            )  # fmt: skip
    if SCALES:
        shift = tl.maximum(tl.ceil(tl.log2(high)) - 15.0, 0.0)
        shrink = tl.exp2(-shift)
        delta *= shrink
        lse -= shift
        tl.debug_barrier()  # other threads have stored the gradient of the context
        for block in range(first, stop):
            c, mask = channels_of(block, M, D, E_K, CB)
            out = (b * L + mark) * (M * D) + c
            grad = tl.load(dcontext_ptr + out, mask=mask, other=0.0)
            fold(
                grad[None, :] * shrink[:, None], w2_k_ptr, grads_ptr, b, mark, c, mask,
                L, lo_stride, 1, E_K, M, D, E_K, EP_K,
            )  # fmt: skip
    tl.store(lse_ptr + row, lse, mask=row_mask)
    tl.store(delta_ptr + row, delta, mask=row_mask)


@triton.jit
def weight_gradient(
    folded_ptr, x_ptr, out_ptr, x_strides, e, m, B, L, splits, size, scale,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one weight, of folded gradients times landmarks."""
    d = tl.arange(0, DP)
    total = tl.zeros([BLOCK, DP], tl.float32)
    for first in range(0, B * L, BLOCK):
        i = first + tl.arange(0, BLOCK)
        b, mark = (i // L).to(tl.int64), i % L
        mask = (i < B * L)[:, None] & (d < D)[None, :]
        x_rows = b * x_strides[0] + mark * x_strides[1] + m * x_strides[2]
        x = tl.load(x_ptr + x_rows[:, None] + d[None, :], mask=mask, other=0.0)
        rows = ((b * E + e) * L + mark) * (M * D) + m * D
        share = load_shares(folded_ptr, rows[:, None] + d[None, :], mask, splits, size)
        total += share * x.to(tl.float32)
    value = tl.sum(tl.sum(total, axis=1), axis=0) * scale
    tl.store(out_ptr, value.to(out_ptr.dtype.element_ty))


@triton.jit
def weight_gradients(
    pid, rows_ptr, x_ptr, dw1_ptr, means_ptr, y_ptr, dw2_ptr, x_strides, y_strides,
    B, L, splits, means_splits, size, scale, M: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of w1 (E, M) and w2 (M, E) of a side, one for a program."""
    e, m = pid // 2 // M, pid // 2 % M
    if pid % 2:
        weight_gradient(
            rows_ptr, x_ptr, dw1_ptr + e * M + m, x_strides, e, m, B, L, splits, size,
            scale, M, D, E, DP, BLOCK,
        )  # fmt: skip
    else:
        weight_gradient(
            means_ptr, y_ptr, dw2_ptr + m * E + e, y_strides, e, m, B, L, means_splits,
            size, 1.0, M, D, E, DP, BLOCK,
        )  # fmt: skip


@kernel
def _unfold_kernel(
    dqueries_ptr, q_ptr, dw1_k_ptr, means_ptr, dcontext_ptr, dw2_k_ptr,
    q_b_stride, q_l_stride, q_m_stride,
    dcontext_b_stride, dcontext_l_stride, dcontext_m_stride,
    dqueries_splits, means_splits, k_size,
    dkeys_ptr, k_ptr, dw1_q_ptr, dvalues_ptr, context_ptr, dw2_q_ptr,
    k_b_stride, k_l_stride, k_m_stride,
    context_b_stride, context_l_stride, context_m_stride,
    dkeys_splits, dvalues_splits, q_size,
    w1_k_ptr, dq_ptr, B, L, first_programs, scale,
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, EP_K: tl.constexpr,
    E_Q: tl.constexpr, EP_Q: tl.constexpr, CB: tl.constexpr, BLOCKS: tl.constexpr,
    DP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of q_landmarks and of the weights of both sides.

    The first programs write the gradient of q_landmarks (B, L, M, D), from the shares
    of the folded one, and the next programs the gradients of the key side's weights.
    """
    pid = tl.program_id(0)
    if pid < first_programs:
        c, mask = channels_of(pid % BLOCKS, M, D, E_K, CB)
        mark, b = pid // BLOCKS % L, (pid // BLOCKS // L).to(tl.int64)
        total = unfold(
            dqueries_ptr, w1_k_ptr, b, mark, c, mask, L, dqueries_splits, k_size, M, 1,
            M, D, E_K, EP_K,
        )  # fmt: skip
        value = (total * scale).to(dq_ptr.dtype.element_ty)
        tl.store(dq_ptr + (b * L + mark) * (M * D) + c, value, mask=mask)
    pid -= first_programs
    if E_K:
        if (pid >= 0) & (pid < 2 * E_K * M):
            weight_gradients(
                pid, dqueries_ptr, q_ptr, dw1_k_ptr, means_ptr, dcontext_ptr, dw2_k_ptr,
                (q_b_stride, q_l_stride, q_m_stride),
                (dcontext_b_stride, dcontext_l_stride, dcontext_m_stride), B, L,
                dqueries_splits, means_splits, k_size, scale, M, D, E_K, DP, BLOCK,
            )  # fmt: skip
    pid -= 2 * E_K * M
    if E_Q:
        if pid >= 0:
            weight_gradients(
                pid, dkeys_ptr, k_ptr, dw1_q_ptr, dvalues_ptr, context_ptr, dw2_q_ptr,
                (k_b_stride, k_l_stride, k_m_stride),
                (context_b_stride, context_l_stride, context_m_stride), B, L,
                dkeys_splits, dvalues_splits, q_size, scale, M, D, E_Q, DP, BLOCK,
            )  # fmt: skip
