"""Attention over blocks of keys in Triton, in the manner of FlashAttention.

Rows are queries. Scores are in units of log 2. A row keeps its largest score, the sum
of its exponentials and the weighted sum of values, all relative to the largest score.
"""

import triton
import triton.language as tl

from .rows import store_rows
from .tf32 import product

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def add_block(high, total, acc, score, v, PRECISION: tl.constexpr):
    """Add a block of keys: scores [BQ, BK], -inf where there is no key, and values."""
    new = tl.maximum(high, tl.max(score, axis=1))
    prob, keep = tl.exp2(score - new[:, None]), tl.exp2(high - new)
    total = total * keep + tl.sum(prob, axis=1)
    acc = acc * keep[:, None] + product(prob, v, PRECISION)
    return new, total, acc


@triton.jit
def store_attention(
    out_ptr, lse_ptr, high, total, acc, b, m, rows, mask, N, M,
    D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Write rows of one head to out (B, N, M, D) and lse (B, M, N)."""
    out_ptr += (b * N * M + m) * D
    store_rows(out_ptr, acc / total[:, None], rows * (M * D), mask, D, DP)
    lse = (high + tl.log2(total)) / LOG2_E
    tl.store(lse_ptr + (b * M + m) * N + rows, lse, mask=mask)
