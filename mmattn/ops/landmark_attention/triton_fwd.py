"""Forward kernels of mixed attention in Triton, and what both passes share.

Rows (R) attend to columns (S). README.md in this folder has the equations. A tile holds
the mixed scores of all E mixed heads for BR rows and BC columns in registers, and heads
are visited one at a time. Without mixing every head is a group of its own (M = E = 1).
"""

import triton
import triton.language as tl

from ..triton_jit import kernel
from ..triton_tf32 import round_operand


@triton.jit
def load_rows(
    ptr, rows, mask, first,
    D: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Load channels [first, first + BD) of one head; rows are offsets, [BR]."""
    d = first + tl.arange(0, BD)
    x = tl.load(
        ptr + rows[:, None] + d[None, :],
        mask=mask[:, None] & (d < D)[None, :],
        other=0.0,
    )  # [BR, BD]
    if ptr.dtype.element_ty == tl.float32:
        return round_operand(x, PRECISION)
    else:
        return x.to(tl.float32)  # exact in TF32


@triton.jit
def load_mixing(
    ptr, first, stride, e, E: tl.constexpr, EB: tl.constexpr, MIX: tl.constexpr
):
    """Load one head's column of w1 or row of w2, or make ones without mixing."""
    if MIX:
        w = tl.load(ptr + first + e * stride, mask=e < E, other=0.0).to(tl.float32)
    else:
        w = tl.full([EB], 1.0, tl.float32)
    return w


@triton.jit
def head_product(
    y_ptr, x_ptr, y_rows, x_rows, y_mask, x_mask,
    D: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return y x^T of one head, [BC, BR]."""
    y = load_rows(y_ptr, y_rows, y_mask, 0, D, BD, PRECISION)
    x = load_rows(x_ptr, x_rows, x_mask, 0, D, BD, PRECISION)
    product = tl.dot(y, tl.trans(x), input_precision=PRECISION)
    for d in range(BD, D, BD):
        y = load_rows(y_ptr, y_rows, y_mask, d, D, BD, PRECISION)
        x = load_rows(x_ptr, x_rows, x_mask, d, D, BD, PRECISION)
        product = tl.dot(y, tl.trans(x), product, input_precision=PRECISION)
    return product


@triton.jit
def add_head(mixed, w, product, e, E: tl.constexpr):
    """Return mixed[e] + w[e] product.

    A thread holds all of e. With one block of e the compiler knows which registers are
    padding, and the zeros make them vanish.
    """
    return tl.where(
        (e < E)[:, None, None], mixed + w[:, None, None] * product[None, :, :], 0.0
    )


@triton.jit
def mixed_product(
    y_ptr, x_ptr, w_ptr, y_rows, x_rows, y_mask, x_mask,
    y_m_stride, x_m_stride, w_e_stride, w_m_stride, scale, num_heads, e,
    D: tl.constexpr, E: tl.constexpr, EB: tl.constexpr, BC: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr, MIX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return scale * sum_m w[e, m] y_m x_m^T, [EB, BC, BR].

    Rows are the last axis, because Triton spreads that over lanes first. A thread then
    holds the statistics of one row instead of all.
    """
    mixed = tl.zeros([EB, BC, BR], tl.float32)
    for m in range(num_heads):
        w = load_mixing(w_ptr, m * w_m_stride, w_e_stride, e, E, EB, MIX)
        product = scale * head_product(
            y_ptr + m * y_m_stride, x_ptr + m * x_m_stride,
            y_rows, x_rows, y_mask, x_mask, D, BD, PRECISION,
        )  # fmt: skip
        mixed = add_head(mixed, w, product, e, E)
    return mixed


@triton.jit
def softmax(scores, lse, col_mask, e, E: tl.constexpr):
    """Return exp(scores - lse), 0 where masked. Only rounding makes it exceed 1."""
    shifted = scores - lse[:, None, :]
    shifted = tl.where(shifted > 0.0, 0.0, shifted)  # keeps NaN
    used = (e < E)[:, None, None] & col_mask[None, :, None]
    return tl.where(used, tl.exp(shifted), 0.0)


@triton.jit
def add_rows(
    ptr, value, rows, mask, first, new,
    D: tl.constexpr, BD: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Store channels [first, first + BD) of one head. Unless the place is `new`, add
    them to what an earlier tile of the program stored there."""
    d = first + tl.arange(0, BD)
    ptrs = ptr + rows[:, None] + d[None, :]
    full_mask = mask[:, None] & (d < D)[None, :]
    if not ONE_TILE:
        value += tl.load(ptrs, mask=full_mask & (not new), other=0.0)
    tl.store(ptrs, value.to(ptr.dtype.element_ty), mask=full_mask)


@kernel
def _lse_kernel(
    x_ptr, y_ptr, w1_ptr, lse_ptr,
    x_b_stride, x_r_stride, x_m_stride, y_b_stride, y_r_stride, y_m_stride,
    B, R, S, num_heads, groups, row_tiles, col_splits, tiles_per_split, scale,
    D: tl.constexpr, M: tl.constexpr, E: tl.constexpr, EB: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, MIX: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write lse (col_splits, B, groups * E, R), over this program's columns."""
    pid = tl.program_id(0)
    split = pid % col_splits
    rows = pid // col_splits % row_tiles * BR + tl.arange(0, BR)
    block = pid // (col_splits * row_tiles)
    e = block % tl.cdiv(E, EB) * EB + tl.arange(0, EB)
    batch = block // tl.cdiv(E, EB)
    b, g = (batch // groups).to(tl.int64), batch % groups
    row_mask = rows < R
    x_ptr += b * x_b_stride + g * x_m_stride
    y_ptr += b * y_b_stride + g * y_m_stride
    x_rows = rows.to(tl.int64) * x_r_stride

    high = tl.full([EB, BR], float('-inf'), tl.float32)
    total = tl.zeros([EB, BR], tl.float32)
    last = tl.minimum((split + 1) * tiles_per_split * BC, S)
    for first in range(split * tiles_per_split * BC, last, BC):
        cols = (first + tl.arange(0, BC)).to(tl.int64)
        col_mask = cols < S
        scores = mixed_product(
            y_ptr, x_ptr, w1_ptr, cols * y_r_stride, x_rows, col_mask, row_mask,
            y_m_stride, x_m_stride, M, 1, scale, num_heads, e,
            D, E, EB, BC, BR, BD, MIX, PRECISION,
        )  # fmt: skip
        scores = tl.where(col_mask[None, :, None], scores, float('-inf'))
        new_high = tl.maximum(high, tl.max(scores, axis=1))
        total *= tl.exp(high - new_high)
        total += tl.sum(tl.exp(scores - new_high[:, None, :]), axis=1)
        high = new_high

    lse_ptr += ((split * B + b) * groups + g) * E * R
    tl.store(
        lse_ptr + e[:, None] * R + rows[None, :],
        high + tl.log(total),
        mask=(e < E)[:, None] & row_mask[None, :],
    )


@kernel
def _fwd_kernel(
    x_ptr, y_ptr, v_ptr, w1_ptr, w2_ptr, lse_ptr, out_ptr,
    x_b_stride, x_r_stride, x_m_stride, y_b_stride, y_r_stride, y_m_stride,
    v_b_stride, v_r_stride, v_m_stride,
    B, R, S, num_heads, groups, row_tiles, col_splits, tiles_per_split, scale,
    D: tl.constexpr, M: tl.constexpr, E: tl.constexpr, EB: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, MIX: tl.constexpr,
    PRECISION: tl.constexpr, WHOLE_ROWS: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Write the share of this program's columns in out (col_splits, B, R, heads, D).

    WHOLE_ROWS: a tile has all columns, so the kernel computes lse and writes it.
    ONE_TILE: a program has one tile, so it never adds to its own output.
    """
    pid = tl.program_id(0)
    split = pid % col_splits
    rows = pid // col_splits % row_tiles * BR + tl.arange(0, BR)
    batch = pid // (col_splits * row_tiles)
    b, g = (batch // groups).to(tl.int64), batch % groups
    row_mask = rows < R
    x_ptr += b * x_b_stride + g * x_m_stride
    y_ptr += b * y_b_stride + g * y_m_stride
    v_ptr += b * v_b_stride + g * v_m_stride
    x_rows = rows.to(tl.int64) * x_r_stride
    out_ptr += (split * B + b) * R * groups * M * D + g * D
    out_rows = rows.to(tl.int64) * (groups * M * D)
    lse_ptr += (b * groups + g) * E * R

    start = split * tiles_per_split * BC
    last = tl.minimum(start + tiles_per_split * BC, S)
    for first in range(start, last, BC):
        cols = (first + tl.arange(0, BC)).to(tl.int64)
        col_mask = cols < S
        v_rows = cols * v_r_stride
        for e0 in range(0, E, EB):
            e = e0 + tl.arange(0, EB)
            scores = mixed_product(
                y_ptr, x_ptr, w1_ptr, cols * y_r_stride, x_rows, col_mask, row_mask,
                y_m_stride, x_m_stride, M, 1, scale, num_heads, e,
                D, E, EB, BC, BR, BD, MIX, PRECISION,
            )  # fmt: skip
            lse_ptrs = lse_ptr + e[:, None] * R + rows[None, :]
            lse_mask = (e < E)[:, None] & row_mask[None, :]
            if WHOLE_ROWS:
                masked = tl.where(col_mask[None, :, None], scores, float('-inf'))
                high = tl.max(masked, axis=1)
                total = tl.sum(tl.exp(masked - high[:, None, :]), axis=1)
                lse = high + tl.log(total)
                tl.store(lse_ptrs, lse, mask=lse_mask)
            else:
                lse = tl.load(lse_ptrs, mask=lse_mask, other=0.0)
            prob = softmax(scores, lse, col_mask, e, E)

            for m in range(num_heads):
                w2 = load_mixing(w2_ptr, m * E, 1, e, E, EB, MIX)
                attn = tl.sum(w2[:, None, None] * prob, axis=0)  # [BC, BR]
                attn = round_operand(attn, PRECISION)
                for d in range(0, D, BD):
                    v = load_rows(
                        v_ptr + m * v_m_stride, v_rows, col_mask, d, D, BD, PRECISION
                    )
                    out = tl.dot(tl.trans(attn), v, input_precision=PRECISION)
                    add_rows(
                        out_ptr + m * D, out, out_rows, row_mask, d,
                        (first == start) & (e0 == 0), D, BD, ONE_TILE,
                    )  # fmt: skip
            if not ONE_TILE:
                tl.debug_barrier()  # the next tile adds to what this one wrote


@kernel
def _reduce_kernel(
    partial_ptr, out_ptr, size, count,
    LOG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum partial (count, size) over count in order, or log-sum-exp it with LOG."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < size
    total = tl.load(partial_ptr + i, mask=mask, other=0.0)
    for _ in range(1, count):
        partial_ptr += size
        value = tl.load(partial_ptr + i, mask=mask, other=0.0)
        if LOG:
            high = tl.maximum(total, value)
            total = high + tl.log(tl.exp(total - high) + tl.exp(value - high))
        else:
            total += value
    tl.store(out_ptr + i, total.to(out_ptr.dtype.element_ty), mask=mask)
