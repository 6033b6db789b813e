"""Hard masks in Triton: forward of the patches, and what both passes share.

A program takes a tile of TH x TW patches of one head. Taps are the R * R patches around
each patch, then the special tokens. TAPS of them are unrolled, with one
softmax, and a loop goes over the others. Offsets inside an image have 32 bits. Scores
are in units of log 2. README.md has the equations.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.rows import load_rows, store_rows
from ..triton.softmax import LOG2_E

LOWEST = tl.constexpr(-1e30)  # of scores: unlike -inf, it may be subtracted from itself


@triton.jit
def program_tile(M, H, W, TH: tl.constexpr, TW: tl.constexpr):
    """Return batch element, head, number of the tile, and y, x and mask of its patches.

    Heads vary fastest, because the heads of a patch are adjacent in memory.
    """
    pid = tl.program_id(0)
    tiles_x = tl.cdiv(W, TW)
    tiles = tiles_x * tl.cdiv(H, TH)
    m, tile = pid % M, pid // M % tiles
    b = pid // (M * tiles)
    place = tl.arange(0, TH * TW)
    y = tile // tiles_x * TH + place // TW
    x = tile % tiles_x * TW + place % TW
    return b.to(tl.int64), m.to(tl.int64), tile, y, x, (y < H) & (x < W)


@triton.jit
def has_tap(y, x, exists, dy, dx, H, W):
    """Return which patches have one at distance (dy, dx)."""
    return exists & (y + dy >= 0) & (y + dy < H) & (x + dx >= 0) & (x + dx < W)


@triton.jit
def sees_few(y, x, H, W, R: tl.constexpr):
    """Return whether patches have tokens outside their mask."""
    height = tl.minimum(y + R // 2, H - 1) - tl.maximum(y - R // 2, 0) + 1
    width = tl.minimum(x + R // 2, W - 1) - tl.maximum(x - R // 2, 0) + 1
    return height * width < H * W


@triton.jit
def load_bias(bias_ptr, tap):
    """Load the bias of a tap of one head, in units of log 2."""
    if bias_ptr is None:
        bias = 0.0
    else:
        bias = tl.load(bias_ptr + tap).to(tl.float32) * LOG2_E
    return bias


@triton.jit
def load_special(ptr, token, stride, D: tl.constexpr, DP: tl.constexpr):
    """Load a special token of one head in fp32, [1, DP]."""
    d = tl.arange(0, DP)[None, :]
    return tl.load(ptr + token * stride + d, mask=d < D, other=0.0).to(tl.float32)


@triton.jit
def raise_level(level, high, total, acc, few):
    """Express sums relative to the level of a larger score.

    Return also the weight of the level at which each token outside the mask counts.
    """
    keep = tl.exp2(level - high)
    rest = tl.where(few, tl.exp2(-high), 0.0)
    return total * keep, acc * keep[:, None], rest


@kernel
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mean_ptr, out_ptr, lse_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, M, H, W, scale,
    S: tl.constexpr, R: tl.constexpr, TAPS: tl.constexpr, ZERO: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Write the patches of out (B, N, M, D) and lse (B, M, N)."""
    b, m, tile, y, x, exists = program_tile(M, H, W, TH, TW)
    N = S + H * W
    n = S + y * W + x
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    q_ptr += b * q_b_stride + m * q_m_stride
    if bias_ptr is not None:
        bias_ptr += m * (R * R)
    q = load_rows(q_ptr, n * q_n_stride, exists, D, DP) * (scale * LOG2_E)

    # Tokens outside the mask have the score 0: all of them count at first, and taps are
    # weighted by what they exceed that.
    few = sees_few(y, x, H, W, R) & (ZERO == 1)
    level = tl.where(few, 0.0, LOWEST)
    total = tl.where(few, N, 0).to(tl.float32)
    acc = tl.zeros([TH * TW, DP], tl.float32)
    if ZERO:
        d = tl.arange(0, DP)
        mean = tl.load(mean_ptr + (b * M + m) * D + d, mask=d < D, other=0.0)
        acc += total[:, None] * mean[None, :]
    for first in range(0, R * R, TAPS):
        high, scores = level, ()
        for i in tl.static_range(TAPS):
            dy, dx = (first + i) // R - R // 2, (first + i) % R - R // 2
            seen = has_tap(y, x, exists, dy, dx, H, W)
            k = load_rows(k_ptr, (n + dy * W + dx) * k_n_stride, seen, D, DP)
            score = tl.sum(q * k, axis=1) + load_bias(bias_ptr, first + i)
            score = tl.where(seen, score, float('-inf'))
            high, scores = tl.maximum(high, score), scores + (score,)
        total, acc, rest = raise_level(level, high, total, acc, few)
        level = high
        for i in tl.static_range(TAPS):
            dy, dx = (first + i) // R - R // 2, (first + i) % R - R // 2
            seen = has_tap(y, x, exists, dy, dx, H, W)
            v = load_rows(v_ptr, (n + dy * W + dx) * v_n_stride, seen, D, DP)
            weight = tl.where(seen, tl.exp2(scores[i] - high) - rest, 0.0)
            total += weight
            acc += weight[:, None] * v
    for token in tl.static_range(S):
        score = tl.sum(q * load_special(k_ptr, token, k_n_stride, D, DP), axis=1)
        high = tl.maximum(level, score)
        total, acc, rest = raise_level(level, high, total, acc, few)
        level = high
        weight = tl.exp2(score - high) - rest
        total += weight
        acc += weight[:, None] * load_special(v_ptr, token, v_n_stride, D, DP)

    out_ptr += (b * N * M + m) * D
    store_rows(out_ptr, acc / total[:, None], n * (M * D), exists, D, DP)
    lse = (level + tl.log2(total)) / LOG2_E
    tl.store(lse_ptr + (b * M + m) * N + n, lse, mask=exists)
