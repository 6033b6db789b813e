"""Kernels that fold mixing weights into landmarks and unfold gradients, in Triton.

A folded tensor has a row of all channels for each image, mixed head and landmark: those
of the landmark times the weights of the mixed head. Without mixing (E = 0) it has a row
of D channels for each head. In half precision it has two parts, whose sum it is.

A tile has BR landmarks of all images and the channels of one head, and its program
loops over mixed heads. Programs of a split loop leave shares along a new first axis.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel


@triton.jit
def landmarks(tile, B, L, BR: tl.constexpr):
    """Return images and landmarks of a tile, and which exist."""
    i = tile * BR + tl.arange(0, BR)
    near = tl.minimum(i, B * L - 1)
    return (near // L).to(tl.int64), near % L, i < B * L


@triton.jit
def row_of(b, mark, e, head, L, M: tl.constexpr, E: tl.constexpr):
    """Return the rows of a mixed head, or of a head without mixing."""
    return (b * E + e) * L + mark if E else (b * M + head) * L + mark


@triton.jit
def places(
    rows, head, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr
):
    """Return the offsets of a head's channels in rows of a folded tensor, [BR, DP]."""
    d = tl.arange(0, DP)[None, :]
    return rows[:, None] * (M * D) + head * D + d if E else rows[:, None] * D + d


@triton.jit
def load_weight(ptr, e, head, e_stride, m_stride, E: tl.constexpr):
    """Load the weight of a head for a mixed head, 1 without mixing."""
    return tl.load(ptr + e * e_stride + head * m_stride).to(tl.float32) if E else 1.0


@triton.jit
def load_channels(
    ptr, b, mark, head, mask, b_stride, l_stride, m_stride, DP: tl.constexpr
):
    """Load a head of landmarks in fp32, [BR, DP]."""
    ptr += (b * b_stride + mark * l_stride + head * m_stride)[:, None]
    x = tl.load(ptr + tl.arange(0, DP)[None, :], mask=mask, other=0.0)
    return x.to(tl.float32)


@triton.jit
def store_parts(ptrs, value, mask, lo_stride):
    """Store a folded value, in half precision what rounding left of it, too."""
    dtype = ptrs.dtype.element_ty
    high = value.to(dtype)
    tl.store(ptrs, high, mask=mask)
    if dtype != tl.float32:
        tl.store(ptrs + lo_stride, (value - high.to(tl.float32)).to(dtype), mask=mask)


@triton.jit
def fold(
    x, w_ptr, out_ptr, b, mark, head, mask, L, lo_stride, e_stride, m_stride,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Store x [BR, DP], a head of landmarks, times the weight of each mixed head."""
    for e in range(E if E else 1):
        value = x * load_weight(w_ptr, e, head, e_stride, m_stride, E)
        place = places(row_of(b, mark, e, head, L, M, E), head, M, D, E, DP)
        store_parts(out_ptr + place, value, mask, lo_stride)


@triton.jit
def load_shares(ptrs, mask, splits, size):
    """Return the sum of the shares of all programs, in order."""
    total = tl.load(ptrs, mask=mask, other=0.0)
    for _ in range(1, splits):
        ptrs += size
        total += tl.load(ptrs, mask=mask, other=0.0)
    return total


@triton.jit
def unfold(
    ptr, w_ptr, b, mark, head, mask, L, splits, size, e_stride, m_stride,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Return the sum over mixed heads of folded rows times their weights, [BR, DP]."""
    total = tl.zeros([b.shape[0], DP], tl.float32)
    for e in range(E if E else 1):
        place = places(row_of(b, mark, e, head, L, M, E), head, M, D, E, DP)
        share = load_shares(ptr + place, mask, splits, size)
        total += share * load_weight(w_ptr, e, head, e_stride, m_stride, E)
    return total


@kernel
def _fold_kernel(
    q_ptr, w1_k_ptr, queries_ptr, k_ptr, w1_q_ptr, keys_ptr,
    context_ptr, w2_q_ptr, values_ptr,
    q_b_stride, q_l_stride, q_m_stride, k_b_stride, k_l_stride, k_m_stride,
    queries_lo_stride, keys_lo_stride, B, L, scale,
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, E_Q: tl.constexpr,
    DP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Fold w1 and `scale` into landmarks, and w2_q into a context that is not None."""
    head = tl.program_id(0) % M
    b, mark, exists = landmarks(tl.program_id(0) // M, B, L, BR)
    mask = exists[:, None] & (tl.arange(0, DP) < D)[None, :]
    q = load_channels(
        q_ptr, b, mark, head, mask, q_b_stride, q_l_stride, q_m_stride, DP
    )
    fold(
        q * scale, w1_k_ptr, queries_ptr, b, mark, head, mask, L, queries_lo_stride, M,
        1, M, D, E_K, DP,
    )  # fmt: skip
    k = load_channels(
        k_ptr, b, mark, head, mask, k_b_stride, k_l_stride, k_m_stride, DP
    )
    fold(
        k * scale, w1_q_ptr, keys_ptr, b, mark, head, mask, L, keys_lo_stride, M, 1,
        M, D, E_Q, DP,
    )  # fmt: skip
    if context_ptr is not None:
        context = load_channels(
            context_ptr, b, mark, head, mask, L * M * D, M * D, D, DP
        )
        fold(
            context, w2_q_ptr, values_ptr, b, mark, head, mask, L, keys_lo_stride, 1,
            E_Q, M, D, E_Q, DP,
        )  # fmt: skip


@triton.jit
def merge_statistics(lse_ptr, row, mask, splits, rows):
    """Return the maximum of log-sum-exps (splits, rows), and the sum over it."""
    high = tl.full([row.shape[0]], float('-inf'), tl.float32)
    total = tl.zeros([row.shape[0]], tl.float32)
    for _ in range(splits):
        lse = tl.load(lse_ptr + row, mask=mask, other=0.0)
        new = tl.maximum(high, lse)
        total = total * tl.exp2(high - new) + tl.exp2(lse - new)
        high = new
        lse_ptr += rows
    return high, total


@triton.jit
def merge(part_ptr, lse_ptr, place, used, row, mask, high, total, splits, size, rows):
    """Return the means of values of all splits, given theirs (splits, rows, ...)."""
    mean = tl.zeros([place.shape[0], place.shape[1]], tl.float32)
    share = 1.0 / total
    for _ in range(splits):
        lse = tl.load(lse_ptr + row, mask=mask, other=0.0)
        value = tl.load(part_ptr + place, mask=used, other=0.0)
        mean += value * (tl.exp2(lse - high) * share)[:, None]
        part_ptr += size
        lse_ptr += rows
    return mean


@kernel
def _context_kernel(
    part_ptr, lse_part_ptr, w2_k_ptr, w2_q_ptr, context_ptr, values_ptr,
    B, L, splits, size, rows, lo_stride,
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, E_Q: tl.constexpr,
    DP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Write the context (B, L, M, D) of all splits, and w2_q folded into it."""
    head = tl.program_id(0) % M
    b, mark, exists = landmarks(tl.program_id(0) // M, B, L, BR)
    d = tl.arange(0, DP)
    mask = exists[:, None] & (d < D)[None, :]
    context = tl.zeros([BR, DP], tl.float32)
    for e in range(E_K if E_K else 1):
        row = row_of(b, mark, e, head, L, M, E_K)
        high, total = merge_statistics(lse_part_ptr, row, exists, splits, rows)
        mean = merge(
            part_ptr, lse_part_ptr, places(row, head, M, D, E_K, DP), mask, row, exists,
            high, total, splits, size, rows,
        )  # fmt: skip
        context += mean * load_weight(w2_k_ptr, e, head, 1, E_K, E_K)
    ptrs = context_ptr + ((b * L + mark) * (M * D) + head * D)[:, None] + d[None, :]
    tl.store(ptrs, context, mask=mask)
    fold(
        context, w2_q_ptr, values_ptr, b, mark, head, mask, L, lo_stride, 1, E_Q,
        M, D, E_Q, DP,
    )  # fmt: skip


@kernel
def _bwd_context_kernel(
    dkeys_ptr, dvalues_ptr, w1_q_ptr, w2_q_ptr, dk_landmarks_ptr, dcontext_ptr,
    B, L, splits, size, scale,
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, E_Q: tl.constexpr,
    DP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Write the gradients (B, L, M, D) of k_landmarks and of the context, given those
    of the query side's folded tensors."""
    head = tl.program_id(0) % M
    b, mark, exists = landmarks(tl.program_id(0) // M, B, L, BR)
    d = tl.arange(0, DP)
    mask = exists[:, None] & (d < D)[None, :]
    out = ((b * L + mark) * (M * D) + head * D)[:, None] + d[None, :]
    dk = unfold(
        dkeys_ptr, w1_q_ptr, b, mark, head, mask, L, splits, size, M, 1, M, D, E_Q, DP
    )
    dk = (dk * scale).to(dk_landmarks_ptr.dtype.element_ty)
    tl.store(dk_landmarks_ptr + out, dk, mask=mask)
    grad = unfold(
        dvalues_ptr, w2_q_ptr, b, mark, head, mask, L, splits, size, 1, E_Q, M, D, E_Q,
        DP,
    )  # fmt: skip
    tl.store(dcontext_ptr + out, grad, mask=mask)


@kernel
def _bwd_means_kernel(
    part_ptr, lse_part_ptr, w2_k_ptr, dcontext_ptr, grads_ptr, mean_ptr, lse_ptr,
    delta_ptr, B, L, splits, size, rows, lo_stride,
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, E_Q: tl.constexpr,
    DP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Fold the gradient of the context, for one mixed head.

    Also writes the means of values and log-sum-exps of all splits of the key side, and
    delta, the products of the folded gradient's rows with these means.

    In float16 a row beyond its range is divided by a power of two, as is its delta. The
    quotient of the log-sum-exps multiplies the maps instead.
    """
    HEADS: tl.constexpr = E_K if E_K else M
    SCALES: tl.constexpr = grads_ptr.dtype.element_ty == tl.float16
    e = tl.program_id(0) % HEADS
    first, stop = (0, M) if E_K else (e, e + 1)
    b, mark, exists = landmarks(tl.program_id(0) // HEADS, B, L, BR)
    d = tl.arange(0, DP)
    mask = exists[:, None] & (d < D)[None, :]
    row = row_of(b, mark, e, e, L, M, E_K)
    high, total = merge_statistics(lse_part_ptr, row, exists, splits, rows)
    lse = high + tl.log2(total)
    delta = tl.zeros([BR], tl.float32)
    largest = tl.zeros([BR], tl.float32)
    for head in range(first, stop):
        place = places(row, head, M, D, E_K, DP)
        mean = merge(
            part_ptr, lse_part_ptr, place, mask, row, exists, high, total, splits, size,
            rows,
        )  # fmt: skip
        tl.store(mean_ptr + place, mean, mask=mask)
        grad = load_channels(dcontext_ptr, b, mark, head, mask, L * M * D, M * D, D, DP)
        grad *= load_weight(w2_k_ptr, e, head, 1, E_K, E_K)
        delta += tl.sum(grad * mean, axis=1)
        if SCALES:
            largest = tl.maximum(largest, tl.max(tl.abs(grad), axis=1))
        else:
            store_parts(grads_ptr + place, grad, mask, lo_stride)
    if SCALES:
        shift = tl.maximum(tl.ceil(tl.log2(largest)) - 15.0, 0.0)
        shrink = tl.exp2(-shift)
        delta *= shrink
        lse -= shift
        for head in range(first, stop):
            place = places(row, head, M, D, E_K, DP)
            grad = load_channels(
                dcontext_ptr, b, mark, head, mask, L * M * D, M * D, D, DP
            )
            grad *= load_weight(w2_k_ptr, e, head, 1, E_K, E_K)
            store_parts(grads_ptr + place, grad * shrink[:, None], mask, lo_stride)
    tl.store(lse_ptr + row, lse, mask=exists)
    tl.store(delta_ptr + row, delta, mask=exists)


@triton.jit
def weight_gradient(
    folded_ptr, x_ptr, out_ptr, x_strides, e, m, B, L, splits, size, scale,
    M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, DP: tl.constexpr,
    BR: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one weight, of folded gradients times landmarks."""
    mark, d = tl.arange(0, BR)[:, None], tl.arange(0, DP)[None, :]
    total = tl.zeros([BR, DP], tl.float32)
    size_of_head = tl.cast(L, tl.int64) * (M * D)
    x_ptr += m * x_strides[2]
    folded_ptr += e * size_of_head + m * D
    for _ in range(B):
        for first in range(0, L, BR):
            mask = (mark < L - first) & (d < D)
            x = tl.load(
                x_ptr + first * x_strides[1] + (mark * x_strides[1] + d),
                mask=mask,
                other=0.0,
            )
            ptrs = folded_ptr + first * (M * D) + (mark * (M * D) + d)
            total += load_shares(ptrs, mask, splits, size) * x.to(tl.float32)
        x_ptr += x_strides[0]
        folded_ptr += E * size_of_head
    value = tl.sum(tl.sum(total, axis=1), axis=0) * scale
    tl.store(out_ptr, value.to(out_ptr.dtype.element_ty))


@triton.jit
def weight_gradients(
    pid, rows_ptr, x_ptr, dw1_ptr, means_ptr, y_ptr, dw2_ptr, x_strides, y_strides,
    B, L, splits, means_splits, size, scale, M: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, DP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Write the gradients of w1 (E, M) and w2 (M, E) of a side, one for a program."""
    e, m = pid // 2 // M, pid // 2 % M
    if pid % 2:
        weight_gradient(
            rows_ptr, x_ptr, dw1_ptr + e * M + m, x_strides, e, m, B, L, splits, size,
            scale, M, D, E, DP, BR,
        )  # fmt: skip
    else:
        weight_gradient(
            means_ptr, y_ptr, dw2_ptr + m * E + e, y_strides, e, m, B, L, means_splits,
            size, 1.0, M, D, E, DP, BR,
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
    M: tl.constexpr, D: tl.constexpr, E_K: tl.constexpr, E_Q: tl.constexpr,
    DP: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Write the gradients of q_landmarks and of the weights of both sides.

    The first programs write the gradient of q_landmarks (B, L, M, D), from the shares
    of the folded one, and the next programs the gradients of the key side's weights.
    """
    pid = tl.program_id(0)
    if pid < first_programs:
        head = pid % M
        b, mark, exists = landmarks(pid // M, B, L, BR)
        d = tl.arange(0, DP)
        mask = exists[:, None] & (d < D)[None, :]
        total = unfold(
            dqueries_ptr, w1_k_ptr, b, mark, head, mask, L, dqueries_splits, k_size, M,
            1, M, D, E_K, DP,
        )  # fmt: skip
        value = (total * scale).to(dq_ptr.dtype.element_ty)
        out = ((b * L + mark) * (M * D) + head * D)[:, None] + d[None, :]
        tl.store(dq_ptr + out, value, mask=mask)
    pid -= first_programs
    if E_K:
        if (pid >= 0) & (pid < 2 * E_K * M):
            weight_gradients(
                pid, dqueries_ptr, q_ptr, dw1_k_ptr, means_ptr, dcontext_ptr, dw2_k_ptr,
                (q_b_stride, q_l_stride, q_m_stride),
                (dcontext_b_stride, dcontext_l_stride, dcontext_m_stride), B, L,
                dqueries_splits, means_splits, k_size, scale, M, D, E_K, DP, BR,
            )  # fmt: skip
    pid -= 2 * E_K * M
    if E_Q:
        if pid >= 0:
            weight_gradients(
                pid, dkeys_ptr, k_ptr, dw1_q_ptr, dvalues_ptr, context_ptr, dw2_q_ptr,
                (k_b_stride, k_l_stride, k_m_stride),
                (context_b_stride, context_l_stride, context_m_stride), B, L,
                dkeys_splits, dvalues_splits, q_size, scale, M, D, E_Q, DP, BR,
            )  # fmt: skip
