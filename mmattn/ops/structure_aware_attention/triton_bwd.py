"""Backward kernels of structure-aware attention in Triton.

Layouts are the same as in triton_fwd.py.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from .triton_dft import (
    add_columns_transform,
    blocks_beside,
    grid_places,
    multiply,
    spectral_places,
    to_columns,
)


@kernel
def _bwd_correlate_kernel(
    x_ptr, patterns_ptr, channels_ptr, dft_ptr, out_ptr,
    D, K, heads, H, W, blocks, chunks, terms_per_split, CW,
    KERNELS: tl.constexpr, SHARED: tl.constexpr, T: tl.constexpr, HP: tl.constexpr,
    WP: tl.constexpr, CP: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr,
    BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum conj(x) F(patterns[k] channels[c]) as half-spectra, where F is the transform.

    patterns are planes (heads, K, N) and channels (heads, D, N); `heads` is B * M.
    KERNELS: gradients (splits, D, K, ...) of kernels, from half-spectra x of planes
    (heads, D, N), summed over this split's heads.
    Otherwise gradients (heads, D, ...) of planes, from half-spectra x of kernels (D, K,
    N), or (K, N) where SHARED, summed over patterns.
    """
    pid = tl.program_id(0)
    c0 = pid % chunks * CP
    first = pid // chunks % blocks * (T * UH * UW)
    rest = pid // (chunks * blocks)
    N, size = H * W, 2 * (H * (W // 2 + 1))
    low = 2 * (HP * HP + WP * CW)
    if KERNELS:
        num_items = K
        head, channel = 0, rest % D  # head: the term
        start = rest // D * terms_per_split
        end = tl.minimum(start + terms_per_split, heads)
    else:
        num_items = D
        head = rest.to(tl.int64)
        start, end = 0, K
    item, place, mask = spectral_places(
        first, num_items, 0, c0, H, W, T, HP, HP // UH, CP, CP // UW, UH
    )
    acc = tl.zeros([HP, T * CP], tl.float32)
    for term in range(start, end):
        z = tl.zeros([HP, T * CP], tl.float32)
        for h0 in range(0, HP, BH):
            of, at, of_mask = grid_places(
                first, num_items, h0, H, W, T, BH, HP // UH, WP, UH, UW
            )
            if KERNELS:
                long_term = tl.cast(term, tl.int64)
                pattern = tl.load(
                    patterns_ptr + long_term * K * N + (of * N + at),
                    mask=of_mask,
                    other=0.0,
                )
                x = tl.load(
                    channels_ptr + (long_term * D + channel) * N + at,
                    mask=of_mask,
                    other=0.0,
                )
            else:
                pattern = tl.load(
                    patterns_ptr + (head * K + term) * N + at, mask=of_mask, other=0.0
                )
                x = tl.load(
                    channels_ptr + head * D * N + (of * N + at), mask=of_mask, other=0.0
                )
            columns = to_columns(
                x * pattern, dft_ptr, low, c0, CW, HP, WP, CP, PRECISION
            )
            columns = blocks_beside(columns, T, BH, CP)
            z = add_columns_transform(
                z, columns, dft_ptr, low, 0, h0, False, HP, HP, BH, PRECISION
            )
        if KERNELS:
            x_place = (tl.cast(term, tl.int64) * D + channel) * size + place
        elif SHARED:
            x_place = term * size + place
        else:
            x_place = (item * K + term) * size + place
        x = tl.load(x_ptr + x_place, mask=mask, other=0.0)
        acc += multiply(x, z, True)
    if KERNELS:
        out_ptr += rest.to(tl.int64) * K * size
    else:
        out_ptr += head * D * size
    tl.store(out_ptr + item * size + place, acc, mask=mask)


@kernel
def _bwd_bias_kernel(
    patterns_ptr, grad_ptr, out_ptr, D, K, N, heads, blocks, heads_per_split,
    BK: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Sum patterns (heads, K, N) times grad (heads, D, N) to out (splits, D, K)."""
    pid = tl.program_id(0)
    k = pid % blocks * BK + tl.arange(0, BK)
    split = pid // blocks
    d = tl.arange(0, DP)
    acc = tl.zeros([DP, BK], tl.float32)
    start = split * heads_per_split
    for head in range(start, tl.minimum(start + heads_per_split, heads)):
        patterns = patterns_ptr + tl.cast(head, tl.int64) * K * N
        grad = grad_ptr + tl.cast(head, tl.int64) * D * N
        for first in range(0, N, BN):
            n = first + tl.arange(0, BN)
            p = tl.load(
                patterns + k[None, :] * N + n[:, None],
                mask=(k < K)[None, :] & (n < N)[:, None],
                other=0.0,
            )
            g = tl.load(
                grad + d[:, None] * N + n[None, :],
                mask=(d < D)[:, None] & (n < N)[None, :],
                other=0.0,
            )
            acc = tl.dot(g, p, acc, input_precision='tf32x3')
    tl.store(
        out_ptr + split * D * K + d[:, None] * K + k[None, :],
        acc,
        mask=(d < D)[:, None] & (k < K)[None, :],
    )


@triton.jit
def unnormalize(dy, y, scale):
    """Return the gradient of x [BN, DP], given dy of `y = x * scale`."""
    return scale[:, None] * (dy - y * tl.sum(y * dy, axis=1)[:, None])


@triton.jit
def load_plane(ptr, tokens, mask, N, D: tl.constexpr, DP: tl.constexpr):
    d = tl.arange(0, DP)
    return tl.load(
        ptr + d[None, :] * N + tokens[:, None],
        mask=mask[:, None] & (d < D)[None, :],
        other=0.0,
    )  # [BN, DP]


@triton.jit
def store_tokens(ptr, x, b, m, tokens, mask, N, M, D: tl.constexpr, DP: tl.constexpr):
    d = tl.arange(0, DP)
    ptr += (b * N * M + m) * D
    offsets = tokens[:, None].to(tl.int64) * (M * D) + d[None, :]
    tl.store(
        ptr + offsets,
        x.to(ptr.dtype.element_ty),
        mask=mask[:, None] & (d < D)[None, :],
    )


@kernel
def _bwd_tokens_kernel(
    grads_ptr, planes_ptr, scale_ptr, dq_ptr, dk_ptr, dv_ptr, N, M, heads, blocks,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write gradients of q, k and v (B, N, M, D), given those (3, B * M, D, N) of the
    planes that `_planes_kernel` made of them."""
    pid = tl.program_id(0)
    tokens = pid % blocks * BN + tl.arange(0, BN)
    mask = tokens < N
    head = (pid // blocks).to(tl.int64)
    b, m = head // M, head % M
    grads_ptr += head * D * N
    planes_ptr += head * D * N
    scale_ptr += head * N + tokens
    next_tensor = tl.cast(heads, tl.int64) * N

    dy = load_plane(grads_ptr, tokens, mask, N, D, DP)
    y = load_plane(planes_ptr, tokens, mask, N, D, DP)
    scale = tl.load(scale_ptr, mask=mask, other=0.0)
    store_tokens(dq_ptr, unnormalize(dy, y, scale), b, m, tokens, mask, N, M, D, DP)

    dy = load_plane(grads_ptr + next_tensor * D, tokens, mask, N, D, DP)
    y = load_plane(planes_ptr + next_tensor * D, tokens, mask, N, D, DP)
    scale = tl.load(scale_ptr + next_tensor, mask=mask, other=0.0)
    store_tokens(dk_ptr, unnormalize(dy, y, scale), b, m, tokens, mask, N, M, D, DP)

    dy = load_plane(grads_ptr + next_tensor * 2 * D, tokens, mask, N, D, DP)
    store_tokens(dv_ptr, dy, b, m, tokens, mask, N, M, D, DP)
