"""Kernels of structure-aware attention in Triton: layouts, spectra, contraction.

Inside the operator all tensors of tokens are planes in fp32, with a grid of N numbers
for each batch element, head and channel or pattern. README.md has the equations.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from ..triton.tf32 import round_operand
from .triton_dft import (
    add_columns_transform,
    add_product,
    blocks_below,
    blocks_beside,
    grid_places,
    multiply,
    spectral_places,
    to_columns,
)


@triton.jit
def load_tokens(
    ptr, b, m, tokens, mask, b_stride, n_stride, m_stride, d_stride,
    D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Load [BN, DP] of one head in fp32."""
    d = tl.arange(0, DP).to(tl.int64)
    ptr += b * b_stride + m * m_stride
    offsets = tokens[:, None].to(tl.int64) * n_stride + d[None, :] * d_stride
    x = tl.load(ptr + offsets, mask=mask[:, None] & (d < D)[None, :], other=0.0)
    return x.to(tl.float32)


@triton.jit
def store_plane(ptr, x, tokens, mask, N, D: tl.constexpr, DP: tl.constexpr):
    d = tl.arange(0, DP)
    tl.store(
        ptr + d[None, :] * N + tokens[:, None],
        x,
        mask=mask[:, None] & (d < D)[None, :],
    )


@kernel
def _planes_kernel(
    q_ptr, k_ptr, v_ptr, planes_ptr, scale_ptr,
    q_b_stride, q_n_stride, q_m_stride, q_d_stride,
    k_b_stride, k_n_stride, k_m_stride, k_d_stride,
    v_b_stride, v_n_stride, v_m_stride, v_d_stride,
    N, M, heads, blocks, eps,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write unit q, unit k and v as planes (3, B * M, D, N), and the factors (2, B * M,
    N) of q and k. `heads` is B * M."""
    pid = tl.program_id(0)
    tokens = pid % blocks * BN + tl.arange(0, BN)
    mask = tokens < N
    head = (pid // blocks).to(tl.int64)
    b, m = head // M, head % M
    planes_ptr += head * D * N
    scale_ptr += head * N + tokens

    x = load_tokens(
        q_ptr, b, m, tokens, mask, q_b_stride, q_n_stride, q_m_stride, q_d_stride, D, DP
    )
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) + eps)
    tl.store(scale_ptr, scale, mask=mask)
    store_plane(planes_ptr, x * scale[:, None], tokens, mask, N, D, DP)

    x = load_tokens(
        k_ptr, b, m, tokens, mask, k_b_stride, k_n_stride, k_m_stride, k_d_stride, D, DP
    )
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) + eps)
    tl.store(scale_ptr + tl.cast(heads, tl.int64) * N, scale, mask=mask)
    planes_ptr += tl.cast(heads, tl.int64) * D * N
    store_plane(planes_ptr, x * scale[:, None], tokens, mask, N, D, DP)

    x = load_tokens(
        v_ptr, b, m, tokens, mask, v_b_stride, v_n_stride, v_m_stride, v_d_stride, D, DP
    )
    planes_ptr += tl.cast(heads, tl.int64) * D * N
    store_plane(planes_ptr, x, tokens, mask, N, D, DP)


@kernel
def _spectrum_kernel(
    x_ptr, dft_ptr, out_ptr, num_items, H, W, blocks, chunks, CW,
    T: tl.constexpr, HP: tl.constexpr, WP: tl.constexpr, CP: tl.constexpr,
    UH: tl.constexpr, UW: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Transform planes (outer, items, H, W) to (outer, items, H, W // 2 + 1, 2)."""
    pid = tl.program_id(0)
    c0 = pid % chunks * CP
    first = pid // chunks % blocks * (T * UH * UW)
    outer = (pid // (chunks * blocks)).to(tl.int64)
    x_ptr += outer * num_items * (H * W)
    low = 2 * (HP * HP + WP * CW)
    z = tl.zeros([HP, T * CP], tl.float32)
    for h0 in range(0, HP, BH):
        item, place, mask = grid_places(
            first, num_items, h0, H, W, T, BH, HP // UH, WP, UH, UW
        )
        x = tl.load(x_ptr + item * (H * W) + place, mask=mask, other=0.0)
        columns = to_columns(x, dft_ptr, low, c0, CW, HP, WP, CP, PRECISION)
        columns = blocks_beside(columns, T, BH, CP)
        z = add_columns_transform(
            z, columns, dft_ptr, low, 0, h0, False, HP, HP, BH, PRECISION
        )
    item, place, mask = spectral_places(
        first, num_items, 0, c0, H, W, T, HP, HP // UH, CP, CP // UW, UH
    )
    size = 2 * (H * (W // 2 + 1))
    tl.store(out_ptr + outer * num_items * size + item * size + place, z, mask=mask)


@kernel
def _contract_kernel(
    x_ptr, w_ptr, factor_ptr, bias_ptr, dft_ptr, out_ptr, D, K, H, W, blocks, CW,
    PATTERNS: tl.constexpr, T: tl.constexpr, HP: tl.constexpr, RP: tl.constexpr,
    WP: tl.constexpr, CP: tl.constexpr, UH: tl.constexpr, UW: tl.constexpr,
    BH: tl.constexpr, NC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum factor[l] (x * w), where * is the circular convolution.

    PATTERNS: out (B * M, K, N) from factors (B * M, D, N), summed over channels.
    Otherwise out (B * M, D, N) from factors (B * M, K, N), summed over patterns.
    x are half-spectra of planes (B * M, D, N) and w of kernels: (K, N) and with a bias
    (D, K), added to x * w, or (D, K, N). Without w and factors, and with K = 1, out is
    x transformed back.
    """
    pid = tl.program_id(0)
    r0 = pid % (HP // RP) * RP
    first = pid // (HP // RP) % blocks * (T * UH * UW)
    outer = (pid // (HP // RP * blocks)).to(tl.int64)
    num_items, num_terms = (K, D) if PATTERNS else (D, K)
    N, size = H * W, 2 * (H * (W // 2 + 1))
    low = 2 * (HP * HP + WP * CW)
    x_ptr += outer * D * size
    to, at, to_mask = grid_places(
        first, num_items, r0, H, W, T, RP, HP // UH, WP, UH, UW
    )
    acc = tl.zeros([T * RP, WP], tl.float32)
    for term in range(num_terms):
        y = tl.zeros([T * RP, WP], tl.float32)
        for c0 in range(0, NC * CP, CP):
            rows = tl.zeros([RP, T * CP], tl.float32)
            for h0 in range(0, HP, BH):
                item, place, mask = spectral_places(
                    first, num_items, h0, c0, H, W, T, BH, HP // UH, CP, CP // UW, UH
                )
                channel, pattern = (term, item) if PATTERNS else (item, term)
                z = tl.load(x_ptr + channel * size + place, mask=mask, other=0.0)
                if w_ptr is not None:
                    kernel = pattern
                    if bias_ptr is None:
                        kernel += channel * K
                    w = tl.load(w_ptr + kernel * size + place, mask=mask, other=0.0)
                    z = multiply(w, z, False)
                rows = add_columns_transform(
                    rows, z, dft_ptr, low, r0, h0, True, HP, RP, BH, PRECISION
                )
            rows = blocks_below(rows, T, RP, CP)
            high = round_operand(rows, 'tf32')
            back_ptr = dft_ptr + 2 * HP * HP + (CW + c0) * WP
            y = add_product(y, rows, high, back_ptr, WP, low, False, CP, WP, PRECISION)
        if bias_ptr is not None:
            index = term * K + to if PATTERNS else to * K + term
            y += tl.load(bias_ptr + index, mask=to_mask, other=0.0)
        if factor_ptr is not None:
            factor = tl.load(
                factor_ptr + (outer * num_terms + term) * N + at,
                mask=to_mask,
                other=0.0,
            )
            y *= factor
        acc += y
    tl.store(out_ptr + outer * num_items * N + to * N + at, acc, mask=to_mask)
