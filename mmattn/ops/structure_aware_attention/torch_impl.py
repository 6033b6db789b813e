"""Structure-aware attention on CPUs, by complex transforms of two heads each.

The kernels are real and shared by the heads, so one complex transform convolves two
heads at once, as its real and its imaginary part. Between transforms all arithmetic is
real and on the interleaved parts, whose axis is written 2N here. The maps of N x C x K
numbers of the definition are made in chunks that stay in cache, and made again in the
backward.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..common.checks import device_reason
from ..common.chunks import image_and_head_slices, slices
from .reference import EPS
from .spectrum import column_weights, half_spectrum, whole_spectrum

CHUNK_ELEMENTS = 1 << 18  # of one complex map: 2 MiB in single precision


def unsupported(q: Tensor, *tensors: Tensor) -> str | None:
    """Return why this backend does not support a call, or None."""
    return device_reason(q, 'cpu', 'meta')


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Return the output and the patterns (B, M, K, N) in the compute dtype."""
    B, N, M, D = q.shape
    K, dtype = bias.shape[1], bias.dtype
    w_a, w_b = (_spectrum(w, grid) for w in (w_a, w_b))
    q, k, v = (_even_heads(x, 2) for x in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype)
    patterns = torch.empty(B, q.shape[2], K, N, dtype=dtype)
    q, k, v, out_pairs = (_channel_pairs(x) for x in (q, k, v, out))
    pattern_pairs = _pattern_pairs(patterns)
    for chunk in image_and_head_slices(*q.shape[:2], K * D * N, CHUNK_ELEMENTS):
        q_n, k_n, v_n = (_load(x[chunk], dtype) for x in (q, k, v))  # (r, D, 2N)
        q_n, k_n = (x.mul_(_normalizer(x, 1)) for x in (q_n, k_n))
        k_hat, v_hat = _fft(k_n, grid), _fft(v_n, grid)  # (r, D, *grid)
        p = torch.empty(len(q_n), K, 2 * N, dtype=dtype)
        y = bias.new_zeros(q_n.shape)
        for some in slices(K, k_hat.numel(), CHUNK_ELEMENTS):  # s of the patterns
            g_a = _ifft(k_hat.unsqueeze(2) * w_a[:, some], grid)  # (r, D, s, 2N)
            torch.sum(g_a.mul_(q_n.unsqueeze(2)), dim=1, out=p[:, some])
            g_b = _ifft(v_hat.unsqueeze(1) * w_b[some, None], grid)  # (r, s, D, 2N)
            y += g_b.mul_(p[:, some].unsqueeze(2)).sum(1)
            del g_a, g_b  # before the next ones are made
        _store(pattern_pairs[chunk], p)
        _store(out_pairs[chunk], y.baddbmm_(bias.expand(len(p), D, K), p))
    return out[:, :, :M].contiguous(), patterns[:, :M].contiguous()


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Return the gradients of q, k, v, the parts of w_a and w_b, and the bias."""
    _, N, M, D = q.shape
    K, dtype = bias.shape[1], bias.dtype
    w_a, w_b = (_spectrum(w, grid) for w in (w_a, w_b))
    w_a_conj, w_b_conj = (w.conj_physical() for w in (w_a, w_b))
    dw_a, dw_b, dbias = (torch.zeros_like(x) for x in (w_a, w_b, bias))
    grad, q, k, v = (_even_heads(x, 2) for x in (grad, q, k, v))
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    p_pairs = _pattern_pairs(_even_heads(patterns, 1))
    grad, q, k, v = (_channel_pairs(x) for x in (grad, q, k, v))
    dq_pairs, dk_pairs, dv_pairs = (_channel_pairs(x) for x in (dq, dk, dv))
    for chunk in image_and_head_slices(*q.shape[:2], K * D * N, CHUNK_ELEMENTS):
        dy, q_n, k_n, v_n, p = (
            _load(x[chunk], dtype) for x in (grad, q, k, v, p_pairs)
        )  # (r, D, 2N), p: (r, K, 2N)
        q_scale, k_scale = _normalizer(q_n, 1), _normalizer(k_n, 1)
        q_n, k_n = q_n.mul_(q_scale), k_n.mul_(k_scale)
        k_hat, v_hat = _fft(k_n, grid), _fft(v_n, grid)
        k_conj, v_conj = k_hat.conj_physical(), v_hat.conj_physical()
        dbias += dy.bmm(p.mT).sum(0)
        dp = bias.T.expand(len(p), K, D).bmm(dy)
        dq_n, dk_hat, dv_hat = (torch.zeros_like(x) for x in (q_n, k_hat, v_hat))
        for some in slices(K, k_hat.numel(), CHUNK_ELEMENTS):
            f = _fft(p[:, some].unsqueeze(2) * dy.unsqueeze(1), grid)  # (r, s, D, ..)
            dv_hat += _sum(f * w_b_conj[some, None], 1)
            dw_b[some] += _sum(f.mul_(v_conj.unsqueeze(1)), 2).sum(0)
            torch.mul(v_hat.unsqueeze(1), w_b[some, None], out=f)
            g = _ifft(f, grid)
            dp_s = dp[:, some].add_(g.mul_(dy.unsqueeze(1)).sum(2)).unsqueeze(1)
            f = f.view(len(p), D, -1, *grid)
            torch.mul(k_hat.unsqueeze(2), w_a[:, some], out=f)
            g = _ifft(f, grid)
            dq_n += g.mul_(dp_s).sum(2)
            f = _fft(torch.mul(q_n.unsqueeze(2), dp_s, out=g), grid)  # (r, D, s, ..)
            dk_hat += _sum(f * w_a_conj[:, some], 2)
            for f_r, k_r in zip(f, k_conj, strict=True):
                dw_a[:, some].addcmul_(f_r, k_r.unsqueeze(1))
            del f, g  # before the next ones are made
        _store(dq_pairs[chunk], _unnormalized(dq_n, q_n, q_scale, 1))
        _store(dk_pairs[chunk], _unnormalized(_ifft(dk_hat, grid), k_n, k_scale, 1))
        _store(dv_pairs[chunk], _ifft(dv_hat, grid))
    weights = column_weights(grid, w_a)
    dw_a, dw_b = (
        torch.view_as_real(half_spectrum(dw, grid).mul_(weights)) for dw in (dw_a, dw_b)
    )
    dq, dk, dv = (x[:, :, :M].contiguous() for x in (dq, dk, dv))
    return dq, dk, dv, dw_a, dw_b, dbias


def _spectrum(parts: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the whole spectrum of the parts of a half-spectrum."""
    return whole_spectrum(torch.view_as_complex(parts.contiguous()), grid)


def _normalizer(x: Tensor, dim: int) -> Tensor:
    """Return the factor of the L2 normalization."""
    return x.square().sum(dim, keepdim=True).add_(EPS).rsqrt_()


def _unnormalized(dy: Tensor, y: Tensor, scale: Tensor, dim: int) -> Tensor:
    """Return the gradient of x, given dy of its normalized `y = x * scale`."""
    return (dy - y * (y * dy).sum(dim, keepdim=True)).mul_(scale)


def _even_heads(x: Tensor, dim: int) -> Tensor:
    """Add a head of zeros to an odd number of heads."""
    if x.shape[dim] % 2 == 0:
        return x
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, 1))


def _channel_pairs(x: Tensor) -> Tensor:
    """View (B, N, M, D) as (B, M / 2, D, N, 2)."""
    return x.unflatten(2, (-1, 2)).permute(0, 2, 4, 1, 3)


def _pattern_pairs(x: Tensor) -> Tensor:
    """View (B, M, K, N) as (B, M / 2, K, N, 2)."""
    return x.unflatten(1, (-1, 2)).permute(0, 1, 3, 4, 2)


def _load(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy (b, h, D, N, 2) to (b * h, D, 2N)."""
    return x.to(dtype, copy=True, memory_format=torch.contiguous_format).view(
        -1, x.shape[2], 2 * x.shape[3]
    )


def _store(out: Tensor, x: Tensor):
    """Write (b * h, D, 2N) to (b, h, D, N, 2)."""
    out.copy_(x.view(out.shape))


def _fft(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Transform (..., 2N) to its spectrum (..., *grid)."""
    x = torch.view_as_complex(x.unflatten(-1, (*grid, 2)))
    for dims in _axes(grid):
        x = torch.fft.fftn(x, dim=dims)
    return x


def _ifft(spectrum: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Invert `_fft`."""
    for dims in _axes(grid):
        spectrum = torch.fft.ifftn(spectrum, dim=dims)
    return torch.view_as_real(spectrum).flatten(-len(grid) - 1)


def _axes(grid: tuple[int, ...]) -> list[list[int]]:
    """Return the axes of a grid that are transformed together, in order.

    MKL is slow with three axes, unless the first is very short. The last two come last,
    since their transform is contiguous.
    """
    axes = list(range(-len(grid), 0))
    if grid[0] < 4:
        return [axes]
    return [part for part in (axes[:-2], axes[-2:]) if part]


def _sum(x: Tensor, dim: int) -> Tensor:
    """Sum complex numbers over an axis, faster than `torch.sum` does."""
    return torch.view_as_complex(torch.view_as_real(x).sum(dim))
