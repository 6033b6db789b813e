"""Loads and stores of rows of one head in Triton, and the head of a program."""

import triton
import triton.language as tl


@triton.jit
def channels_mask(mask, d, D: tl.constexpr, DP: tl.constexpr):
    """Return which of DP channels of rows exist, [len(rows), DP]."""
    mask = tl.broadcast_to(mask[:, None], (mask.shape[0], DP))
    if D < DP:
        mask = mask & (d < D)[None, :]
    return mask


@triton.jit
def load_rows(ptr, rows, mask, D: tl.constexpr, DP: tl.constexpr):
    """Load [len(rows), DP] of one head in fp32; rows are offsets."""
    d = tl.arange(0, DP)
    mask = channels_mask(mask, d, D, DP)
    x = tl.load(ptr + rows[:, None] + d[None, :], mask=mask, other=0.0)
    return x.to(tl.float32)


@triton.jit
def load_operand(
    ptr, rows, mask, D: tl.constexpr, DP: tl.constexpr, NATIVE: tl.constexpr
):
    """Load [len(rows), DP] of one head for a product, as stored if NATIVE, or fp32."""
    x = load_rows(ptr, rows, mask, D, DP)
    return x.to(ptr.dtype.element_ty) if NATIVE else x


@triton.jit
def store_rows(ptr, x, rows, mask, D: tl.constexpr, DP: tl.constexpr):
    """Store [len(rows), DP] of one head; rows are offsets."""
    d = tl.arange(0, DP)
    mask = channels_mask(mask, d, D, DP)
    tl.store(ptr + rows[:, None] + d[None, :], x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def program_block(M, blocks):
    """Return batch element, head and block; blocks of a head run side by side."""
    pid = tl.program_id(0)
    head = pid // blocks
    return (head // M).to(tl.int64), (head % M).to(tl.int64), pid % blocks
