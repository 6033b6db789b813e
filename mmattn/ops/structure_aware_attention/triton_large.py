"""Kernels of structure-aware attention in Triton around cuFFT, for any grid.

One pattern is computed at a time: a kernel multiplies spectra, cuFFT transforms the
products, and a kernel contracts the maps. Planes and spectra of k and v lie one after
the other, (2, heads, D, ...), where `heads` is B * M. A spectrum has `size` complex
numbers.
"""

import triton
import triton.language as tl

from ..triton.jit import kernel
from .triton_dft import multiply


@triton.jit
def load_spectrum(ptr, first, size, BLOCK: tl.constexpr):
    place = first * 2 + tl.arange(0, 2 * BLOCK)[None, :]
    return tl.load(ptr + place, mask=place < 2 * size, other=0.0)


@triton.jit
def store_spectrum(ptr, x, first, size, BLOCK: tl.constexpr):
    place = first * 2 + tl.arange(0, 2 * BLOCK)[None, :]
    tl.store(ptr + place, x, mask=place < 2 * size)


@kernel
def _product_kernel(
    x_ptr, w_a_ptr, w_b_ptr, out_ptr, pattern, D, K, heads, size, blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Multiply spectra (2, heads, D) of k and v by one pattern's kernels."""
    pid = tl.program_id(0)
    first = pid % blocks * BLOCK
    plane = (pid // blocks).to(tl.int64)
    x = load_spectrum(x_ptr + plane * 2 * size, first, size, BLOCK)
    if plane < heads * D:
        w_ptr = w_a_ptr + (plane % D * K + pattern) * 2 * size
    else:
        w_ptr = w_b_ptr + tl.cast(pattern, tl.int64) * 2 * size
    w = load_spectrum(w_ptr, first, size, BLOCK)
    out = multiply(w, x, False)
    store_spectrum(out_ptr + plane * 2 * size, out, first, size, BLOCK)


@triton.jit
def map_places(N, blocks, pattern, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr):
    """Return head, tokens and channels of a program, which places of its maps exist,
    which of them earlier patterns have written, and their offsets."""
    pid = tl.program_id(0)
    head = (pid // blocks).to(tl.int64)
    n = pid % blocks * BN + tl.arange(0, BN)
    d = tl.arange(0, DP)
    mask = (d < D)[:, None] & (n < N)[None, :]
    add = mask & (d * 0 + pattern > 0)[:, None]
    place = head * D * N + d[:, None] * N + n[None, :]
    return head, n, d, mask, add, place


@kernel
def _maps_kernel(
    maps_ptr, q_ptr, bias_ptr, patterns_ptr, out_ptr, pattern, K, N, heads, blocks,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Write a pattern and add its share to out, from maps (2, heads, D, N)."""
    head, n, d, mask, add, place = map_places(N, blocks, pattern, D, DP, BN)

    map_k = tl.load(maps_ptr + place, mask=mask, other=0.0)
    q = tl.load(q_ptr + place, mask=mask, other=0.0)
    p = tl.sum(q * map_k, axis=0)
    tl.store(patterns_ptr + (head * K + pattern) * N + n, p, mask=n < N)

    map_v = tl.load(
        maps_ptr + tl.cast(heads, tl.int64) * D * N + place, mask=mask, other=0.0
    )
    bias = tl.load(bias_ptr + d * K + pattern, mask=d < D, other=0.0)
    out = tl.load(out_ptr + place, mask=add, other=0.0)
    out += p[None, :] * (map_v + bias[:, None])
    tl.store(out_ptr + place, out, mask=mask)


@kernel
def _bwd_maps_kernel(
    maps_ptr, q_ptr, grad_ptr, bias_ptr, patterns_ptr, dq_ptr, pattern,
    K, N, heads, blocks, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Replace maps (2, heads, D, N) by their gradients, and add the share of dq."""
    head, n, d, mask, add, place = map_places(N, blocks, pattern, D, DP, BN)
    maps_v_ptr = maps_ptr + tl.cast(heads, tl.int64) * D * N

    map_v = tl.load(maps_v_ptr + place, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + d * K + pattern, mask=d < D, other=0.0)
    grad = tl.load(grad_ptr + place, mask=mask, other=0.0)
    dp = tl.sum(grad * (map_v + bias[:, None]), axis=0)
    p = tl.load(patterns_ptr + (head * K + pattern) * N + n, mask=n < N, other=0.0)
    tl.store(maps_v_ptr + place, p[None, :] * grad, mask=mask)

    map_k = tl.load(maps_ptr + place, mask=mask, other=0.0)
    dq = tl.load(dq_ptr + place, mask=add, other=0.0)
    tl.store(dq_ptr + place, dq + dp[None, :] * map_k, mask=mask)
    q = tl.load(q_ptr + place, mask=mask, other=0.0)
    tl.store(maps_ptr + place, dp[None, :] * q, mask=mask)


@kernel
def _bwd_spectra_kernel(
    grads_ptr, x_ptr, w_a_ptr, w_b_ptr, dx_ptr, dw_ptr, pattern,
    D, K, heads, size, blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the shares of the spectra of k and v, and write dw (2, D, K) of the kernels,
    summed over heads, from spectra of the gradients of maps."""
    pid = tl.program_id(0)
    first = pid % blocks * BLOCK
    channel = pid // blocks % D
    half = (pid // (blocks * D)).to(tl.int64)
    if half == 0:
        w_ptr = w_a_ptr + tl.cast(channel * K + pattern, tl.int64) * 2 * size
    else:
        w_ptr = w_b_ptr + tl.cast(pattern, tl.int64) * 2 * size
    w = load_spectrum(w_ptr, first, size, BLOCK)
    place = first * 2 + tl.arange(0, 2 * BLOCK)[None, :]
    mask = place < 2 * size
    add = mask & (place * 0 + pattern > 0)  # to what earlier patterns left
    dw = tl.zeros([1, 2 * BLOCK], tl.float32)
    for head in range(heads):
        plane = ((half * heads + head) * D + channel) * 2 * size
        grad = tl.load(grads_ptr + plane + place, mask=mask, other=0.0)
        x = tl.load(x_ptr + plane + place, mask=mask, other=0.0)
        dw += multiply(x, grad, True)
        dx = tl.load(dx_ptr + plane + place, mask=add, other=0.0)
        tl.store(dx_ptr + plane + place, dx + multiply(w, grad, True), mask=mask)
    plane = ((half * D + channel) * K + pattern) * 2 * size
    tl.store(dw_ptr + plane + place, dw, mask=mask)
