"""Hard masks in Triton: forward of the patches, and what both passes share.

A program takes a tile of TH x TW patches of one head. A rolled loop visits the taps of
the stencil: R * R patches around each patch, then the special tokens.
README.md has the equations.
"""

import triton
import triton.language as tl

from ..triton_jit import kernel
from ..triton_rows import load_rows, store_rows


@triton.jit
def program_tile(M, H, W, TH: tl.constexpr, TW: tl.constexpr):
    """Return batch element, head, number of the tile, and y, x and mask of its patches.

    Heads vary fastest, because those of a patch are adjacent in memory.
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
def tap_places(tap, y, x, exists, H, W, S: tl.constexpr, R: tl.constexpr):
    """Return y, x and tokens of a tap of patches at y, x, and which patches have it."""
    dy, dx = tap // R - R // 2, tap % R - R // 2
    y += dy
    x += dx
    is_patch = tap < R * R
    on_grid = (y >= 0) & (y < H) & (x >= 0) & (x < W)
    tokens = tl.where(is_patch, S + y * W + x, tap - R * R).to(tl.int64)
    return y, x, tokens, exists & tl.where(is_patch, on_grid, True)


@triton.jit
def sees_few(y, x, H, W, R: tl.constexpr):
    """Return whether patches have tokens outside their mask."""
    height = tl.minimum(y + R // 2, H - 1) - tl.maximum(y - R // 2, 0) + 1
    width = tl.minimum(x + R // 2, W - 1) - tl.maximum(x - R // 2, 0) + 1
    return height * width < H * W


@triton.jit
def expm1_of_negative(x):
    """Return e^x - 1 for x <= 0, with a small error relative to the result."""
    series = 1.0 + x * (1.0 / 7) * (1.0 + x * (1.0 / 8))
    series = 1.0 + x * (1.0 / 5) * (1.0 + x * (1.0 / 6) * series)
    series = 1.0 + x * (1.0 / 3) * (1.0 + x * (1.0 / 4) * series)
    series = x * (1.0 + x * (1.0 / 2) * series)
    return tl.where(x > -0.5, series, tl.exp(x) - 1.0)


@triton.jit
def excess(score, shift, few, ZERO: tl.constexpr):
    """Return e^(score - shift), less the weight e^-shift outside the mask where `few`.

    The two terms may be close, and e^score may overflow; the product below avoids both.
    """
    weight = tl.exp(score - shift)
    if ZERO:
        gap = expm1_of_negative(-tl.abs(score))
        gap = tl.where(score >= 0.0, -gap, gap)
        weight = tl.where(few, gap * tl.exp(tl.maximum(score, 0.0) - shift), weight)
    return weight


@triton.jit
def load_bias(bias_ptr, tap, R: tl.constexpr):
    """Load the bias of a tap of one head; special tokens have none."""
    if bias_ptr is None:
        bias = 0.0
    else:
        bias = tl.load(bias_ptr + tap, mask=(tap >= 0) & (tap < R * R), other=0.0)
        bias = bias.to(tl.float32)
    return bias


@triton.jit
def load_tap(
    q, k_ptr, v_ptr, bias_ptr, tap, y, x, exists, H, W, k_n_stride, v_n_stride,
    S: tl.constexpr, R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Return which patches have a tap, its k and v, and its scores."""
    _, _, tokens, seen = tap_places(tap, y, x, exists, H, W, S, R)
    k = load_rows(k_ptr, tokens * k_n_stride, seen, D, DP)
    score = tl.sum(q * k, axis=1) + load_bias(bias_ptr, tap, R)
    v = load_rows(v_ptr, tokens * v_n_stride, seen, D, DP)
    return seen, k, v, score


@kernel
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, mean_ptr, out_ptr, lse_ptr,
    q_b_stride, q_n_stride, q_m_stride, k_b_stride, k_n_stride, k_m_stride,
    v_b_stride, v_n_stride, v_m_stride, M, H, W, num_taps, scale,
    S: tl.constexpr, R: tl.constexpr, ZERO: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
):  # fmt: skip
    """Write the patches of out (B, N, M, D) and lse (B, M, N)."""
    b, m, tile, y, x, exists = program_tile(M, H, W, TH, TW)
    N = S + H * W
    rows = (S + y * W + x).to(tl.int64)
    k_ptr += b * k_b_stride + m * k_m_stride
    v_ptr += b * v_b_stride + m * v_m_stride
    q_ptr += b * q_b_stride + m * q_m_stride
    if bias_ptr is not None:
        bias_ptr += m * (R * R)
    few = sees_few(y, x, H, W, R)
    q = load_rows(q_ptr, rows * q_n_stride, exists, D, DP) * scale

    high = tl.full([TH * TW], float('-inf'), tl.float32)
    if ZERO:
        high = tl.where(few, 0.0, high)
    total = tl.zeros([TH * TW], tl.float32)
    acc = tl.zeros([TH * TW, DP], tl.float32)
    for tap in range(num_taps):
        seen, _, v, score = load_tap(
            q, k_ptr, v_ptr, bias_ptr, tap, y, x, exists, H, W, k_n_stride, v_n_stride,
            S, R, D, DP,
        )  # fmt: skip
        new = tl.where(seen, tl.maximum(high, score), high)
        shift = tl.where(new == float('-inf'), 0.0, new)
        weight = tl.where(seen, excess(score, shift, few, ZERO), 0.0)
        keep = tl.exp(high - shift)
        total = total * keep + weight
        acc = acc * keep[:, None] + weight[:, None] * v
        high = new

    if ZERO:
        others = tl.where(few, N * tl.exp(-high), 0.0)
        d = tl.arange(0, DP)
        mean = tl.load(mean_ptr + (b * M + m) * D + d, mask=d < D, other=0.0)
        total += others
        acc += others[:, None] * mean[None, :]
    store_rows(
        out_ptr + (b * N * M + m) * D,
        acc / total[:, None],
        rows * (M * D),
        exists,
        D,
        DP,
    )
    tl.store(lse_ptr + (b * M + m) * N + rows, high + tl.log(total), mask=exists)
