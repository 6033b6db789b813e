"""Kernels of structure-aware attention in Triton for short grids.

A convolution on a grid of n tokens is a product with a circulant matrix. The sums and
the differences of the halves of an even side are convolved apart, each by a matrix of
half the size, since z^2h - 1 = (z^h - 1)(z^h + 1). A grid so has P parts of at most
NP <= 64 numbers: sums and differences of its P quarters, of which PW lie side by side.
Quarters are the whole grid where P is 1 and halves where it is 2. README.md has the
equations.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.tf32 import round_operand


@triton.jit
def butterfly(x, P: tl.constexpr):
    """Return the parts of quarters x, or P times the quarters of parts x."""
    if P == 2:
        x = (x[0] + x[1], x[0] - x[1])
    if P == 4:
        a, b, c, d = x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3]
        x = (a + c, b + d, a - c, b - d)
    return x


@triton.jit
def first_places(H, W, P: tl.constexpr, PW: tl.constexpr, NP: tl.constexpr):
    """Return NP places in the grid of the first quarter, and which are not repeated."""
    width, size = W // PW, H * W // P
    i = tl.arange(0, NP)
    near = tl.minimum(i, size - 1)
    return near + near // width * (W - width), i < size


@triton.jit
def load_quarters(ptrs, H, W, P: tl.constexpr, PW: tl.constexpr):
    """Load all quarters, given pointers to the first."""
    x = ()
    for q in tl.static_range(0, P):
        offset = q // PW * (H // (P // PW)) * W + q % PW * (W // PW)
        x = x + (tl.load(ptrs + offset),)
    return x


@triton.jit
def store_quarters(ptrs, x, mask, H, W, P: tl.constexpr, PW: tl.constexpr):
    for q in tl.static_range(0, P):
        offset = q // PW * (H // (P // PW)) * W + q % PW * (W // PW)
        tl.store(ptrs + offset, x[q], mask=mask)


@kernel
def _parts_kernel(
    planes_ptr, parts_ptr, rows, H, W, P: tl.constexpr, PW: tl.constexpr,
    NP: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the parts (rows, P, NP) of planes (rows, N) over P.

    The last number of a part is repeated behind it, where matrices are 0.
    """
    row = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)[:, None]
    place, _ = first_places(H, W, P, PW, NP)
    planes_ptr += tl.minimum(row, rows - 1) * (H * W)
    x = butterfly(load_quarters(planes_ptr + place[None, :], H, W, P, PW), P)
    parts_ptr += row * (P * NP) + tl.arange(0, NP)[None, :]
    for part in tl.static_range(0, P):
        value = round_operand(x[part] * (1.0 / P), PRECISION)
        tl.store(parts_ptr + part * NP, value, mask=row < rows)


@kernel
def _matrices_kernel(
    w_ptr, out_ptr, H, W, P: tl.constexpr, PW: tl.constexpr, NP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the matrices (items, P, NP, NP) of kernels (items, N)."""
    pid = tl.program_id(0).to(tl.int64)
    height, width = H // (P // PW), W // PW
    i, j = tl.arange(0, NP)[:, None], tl.arange(0, NP)[None, :]
    exists = (i < height * width) & (j < height * width)
    row = i // width - j // width
    column = i - j - row * width
    x = ()
    for q in tl.static_range(0, P):
        r, c = row + q // PW * height, column + q % PW * width
        place = tl.where(r < 0, r + H, r) * W + tl.where(c < 0, c + W, c)
        x = x + (tl.load(w_ptr + pid * (H * W) + place, mask=exists, other=0.0),)
    x = butterfly(x, P)
    out_ptr += pid * (P * NP * NP) + i * NP + j
    for part in tl.static_range(0, P):
        tl.store(out_ptr + part * NP * NP, round_operand(x[part], PRECISION))


@kernel
def _convolve_kernel(
    parts_ptr, matrices_ptr, factors_ptr, bias_ptr, out_ptr, D, K, heads, H, W,
    PATTERNS: tl.constexpr, P: tl.constexpr, PW: tl.constexpr, NP: tl.constexpr,
    BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum factor[l] (x * w + bias), where * is the circular convolution.

    PATTERNS: out (heads, K, N) from factors (heads, D, N), summed over channels.
    Otherwise out (heads, D, N) from factors (heads, K, N), summed over patterns.
    x are parts (heads, D, P, NP), and w matrices of kernels: (K, N) with a bias (D, K),
    or (D, K, N) without.
    """
    num_items, num_terms = (K, D) if PATTERNS else (D, K)
    item = tl.program_id(0) % num_items
    first = tl.program_id(0) // num_items * BR
    row = tl.minimum(tl.arange(0, BR), heads - 1 - first)[:, None]
    place, exists = first_places(H, W, P, PW, NP)
    i, j = tl.arange(0, NP)[:, None], tl.arange(0, NP)[None, :]
    factors_ptr += first.to(tl.int64) * num_terms * (H * W)
    parts_ptr += first.to(tl.int64) * D * (P * NP)
    factors, parts = row * num_terms * (H * W) + place[None, :], row * D * (P * NP) + j
    acc = ()
    for _ in tl.static_range(0, P):
        acc = acc + (tl.zeros([BR, NP], tl.float32),)
    for term in tl.range(0, num_terms, disable_licm=P == 4):
        channel, pattern = (term, item) if PATTERNS else (item, term)
        matrix = pattern if bias_ptr is not None else channel * K + pattern
        ptr = matrices_ptr + matrix.to(tl.int64) * (P * NP * NP)
        y = ()
        for part in tl.static_range(0, P):
            x = tl.load(parts_ptr + (channel * P + part) * NP + parts)
            w = tl.load(ptr + part * NP * NP + i * NP + j)
            value = tl.dot(x, tl.trans(w), input_precision=PRECISION)
            if bias_ptr is not None and part == 0:  # whose sign is 1 in all quarters
                # Triton would move a sum before the product, and behind its fence.
                value -= -tl.load(bias_ptr + channel * K + pattern)
            y = y + (value,)
        y = butterfly(y, P)
        factor = load_quarters(factors_ptr + term * (H * W) + factors, H, W, P, PW)
        new = ()
        for q in tl.static_range(0, P):
            new = new + (acc[q] + factor[q] * y[q],)
        acc = new
    out_ptr += (first.to(tl.int64) * num_items + item) * (H * W)
    mask = (tl.arange(0, BR) < heads - first)[:, None] & exists[None, :]
    outs = row * num_items * (H * W) + place[None, :]
    store_quarters(out_ptr + outs, acc, mask, H, W, P, PW)


@triton.jit
def load_product(
    patterns_ptr, channels_ptr, scale, H, W, P: tl.constexpr, PW: tl.constexpr
):
    """Return the parts of the product of two planes and a scale.

    Without a scale, which is no constant, the compiler would compute a product of loads
    once in each warp of a row of the tile.
    """
    x = load_quarters(patterns_ptr, H, W, P, PW)
    y = load_quarters(channels_ptr, H, W, P, PW)
    z = ()
    for q in tl.static_range(0, P):
        z = z + (x[q] * (y[q] * scale),)
    return butterfly(z, P)


@kernel
def _bwd_convolve_kernel(
    patterns_ptr, channels_ptr, matrices_ptr, out_ptr, D, K, heads, H, W, scale,
    SHARED: tl.constexpr, P: tl.constexpr, PW: tl.constexpr, NP: tl.constexpr,
    BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum the products of patterns (heads, K, N) and channels (heads, D, N), convolved
    with mirrored kernels, over patterns to out (heads, D, N). `scale` is 1 / P.

    Matrices are of kernels (D, K, N), or (K, N) where SHARED.
    """
    channel = tl.program_id(0) % D
    first = tl.program_id(0) // D * BR
    row = tl.minimum(tl.arange(0, BR), heads - 1 - first)[:, None]
    place, exists = first_places(H, W, P, PW, NP)
    i, j = tl.arange(0, NP)[:, None], tl.arange(0, NP)[None, :]
    start = (first.to(tl.int64) * D + channel) * (H * W)
    patterns_ptr += first.to(tl.int64) * K * (H * W)
    channels = row * D * (H * W) + place[None, :]
    patterns = row * K * (H * W) + place[None, :]
    acc = ()
    for _ in tl.static_range(0, P):
        acc = acc + (tl.zeros([BR, NP], tl.float32),)
    for pattern in tl.range(0, K, disable_licm=P == 4):
        z = load_product(
            patterns_ptr + pattern * (H * W) + patterns,
            channels_ptr + start + channels, scale, H, W, P, PW,
        )  # fmt: skip
        matrix = pattern if SHARED else channel * K + pattern
        ptr = matrices_ptr + matrix.to(tl.int64) * (P * NP * NP)
        new = ()
        for part in tl.static_range(0, P):
            x = round_operand(z[part], PRECISION)
            w = tl.load(ptr + part * NP * NP + i * NP + j)
            new = new + (tl.dot(x, w, acc[part], input_precision=PRECISION),)
        acc = new
    mask = (tl.arange(0, BR) < heads - first)[:, None] & exists[None, :]
    store_quarters(out_ptr + start + channels, butterfly(acc, P), mask, H, W, P, PW)


@kernel
def _bwd_matrices_kernel(
    patterns_ptr, channels_ptr, parts_ptr, out_ptr, dbias_ptr, D, K, heads, H, W,
    P: tl.constexpr, PW: tl.constexpr, NP: tl.constexpr, BR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients (D, K, P, NP, NP) of matrices, as quarters and transposed.

    patterns (heads, K, N) times channels (heads, D, N) are gradients of convolutions
    of what has the parts (heads, D, P, NP). Their sums are dbias (D, K), if wanted.
    """
    pid = tl.program_id(0)
    channel, pattern = pid // K, pid % K
    place, exists = first_places(H, W, P, PW, NP)
    i, j = tl.arange(0, NP)[:, None], tl.arange(0, NP)[None, :]
    rows = tl.arange(0, BR)[:, None]
    total = tl.zeros([NP], tl.float32)
    acc = ()
    for _ in tl.static_range(0, P):
        acc = acc + (tl.zeros([NP, NP], tl.float32),)
    for first in range(0, heads, BR):
        row = tl.minimum(rows, heads - 1 - first)
        start = tl.cast(first, tl.int64)
        z = load_product(
            patterns_ptr + (start * K + pattern) * (H * W)
            + row * K * (H * W) + place[None, :],
            channels_ptr + (start * D + channel) * (H * W)
            + row * D * (H * W) + place[None, :],
            tl.where(rows < heads - first, 1.0, 0.0), H, W, P, PW,
        )  # fmt: skip
        x_ptr = parts_ptr + (start * D + channel) * (P * NP) + row * D * (P * NP) + j
        new = ()
        for part in tl.static_range(0, P):
            x = tl.trans(tl.load(x_ptr + part * NP))
            y = round_operand(z[part], PRECISION)
            new = new + (tl.dot(x, y, acc[part], input_precision=PRECISION),)
        acc = new
        if dbias_ptr is not None:
            total += tl.sum(z[0], axis=0)
    acc = butterfly(acc, P)
    out_ptr += pid.to(tl.int64) * (P * NP * NP) + i * NP + j
    for q in tl.static_range(0, P):
        tl.store(out_ptr + q * NP * NP, acc[q])
    if dbias_ptr is not None:
        tl.store(dbias_ptr + pid, tl.sum(tl.where(exists, total, 0.0), axis=0))


@kernel
def _bwd_kernels_kernel(
    matrices_ptr, out_ptr, H, W, P: tl.constexpr, PW: tl.constexpr, NP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum gradients (items, P, NP, NP) of matrices to those (items, N) of kernels."""
    pid = tl.program_id(0)
    height, width = H // (P // PW), W // PW
    matrices_ptr += pid.to(tl.int64) * (P * NP * NP)
    tap = tl.arange(0, BLOCK)
    exists = tap < H * W
    total = tl.zeros([BLOCK], tl.float32)
    for of in range(height * width):
        # Where in which quarter the tap moves what is at `of`.
        row, column = tap // W + of // width, tap % W + of % width
        row = tl.where(row < H, row, row - H)
        column = tl.where(column < W, column, column - W)
        below, right = (row >= height).to(tl.int32), (column >= width).to(tl.int32)
        to = (row - below * height) * width + column - right * width
        place = ((below * PW + right) * NP + of) * NP + to
        total += tl.load(matrices_ptr + place, mask=exists, other=0.0)
    tl.store(out_ptr + pid * (H * W) + tap, total, mask=exists)
