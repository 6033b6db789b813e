"""Structure-aware attention by products with small matrices, for grids of short sides.

The convolved maps of a channel, N x K numbers for each head, are made and used while
they are in cache. See `Transforms` for how.
"""

import torch
from torch import Tensor

from ..chunks import image_and_head_slices, slices
from .torch_normalize import normalizer, unnormalized
from .torch_transforms import Transforms

CHUNK_ELEMENTS = 1 << 19  # of the convolved maps of some channels: 2 MiB in float32


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Compute `torch_impl.forward` by small matrices."""
    B, N, M, D = q.shape
    K, dtype = bias.shape[1], bias.dtype
    transforms = Transforms(grid, w_a.dtype)
    m_b = transforms.matrices(w_b.unsqueeze(0))
    out = torch.empty(q.shape, dtype=q.dtype)
    patterns = torch.empty(B, M, K, N, dtype=dtype)
    for images, heads in image_and_head_slices(B, M, K * N, CHUNK_ELEMENTS):
        chunk = images, slice(None), heads
        q_n, k_n = (_load(x[chunk], grid, dtype) for x in (q, k))  # (D, W, H, r)
        q_n, k_n = (x.mul_(normalizer(x, 0)) for x in (q_n, k_n))
        spectra = transforms.spectra(k_n)
        p = q_n.new_zeros(K, *q_n.shape[1:])  # (K, W, H, r)
        channels = slices(D, p.numel(), CHUNK_ELEMENTS)
        buffers = transforms.buffers(channels[0].stop, p)
        for some in channels:
            m_a = transforms.matrices(w_a[some])
            g = transforms.convolve(spectra[some], m_a, buffers)
            for g_c, q_c in zip(g, q_n[some], strict=True):
                p.addcmul_(g_c, q_c)
        del k_n, spectra
        spectra = transforms.spectra(_load(v[chunk], grid, dtype))
        y = q_n  # its memory
        for some in channels:
            g = transforms.convolve(spectra[some], m_b, buffers)
            torch.sum(g.mul_(p), 1, out=y[some])
        y.flatten(1).addmm_(bias, p.flatten(1))
        _store(out[chunk], y)
        _store(patterns[images, heads].permute(0, 3, 1, 2), p)
    return out, patterns


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Compute `torch_impl.backward` by small matrices."""
    B, N, M, D = q.shape
    K, dtype = bias.shape[1], bias.dtype
    transforms = Transforms(grid, w_a.dtype)
    m_b = transforms.matrices(w_b.unsqueeze(0))
    dm_b = torch.zeros_like(m_b)
    dw_a, dbias = (torch.zeros_like(x) for x in (w_a, bias))
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    for images, heads in image_and_head_slices(B, M, K * N, CHUNK_ELEMENTS):
        chunk = images, slice(None), heads
        dy = _load(grad[chunk], grid, dtype)  # (D, W, H, r)
        p = _load(patterns[images, heads].permute(0, 3, 1, 2), grid, dtype)
        dbias += dy.flatten(1).mm(p.flatten(1).T)
        dp = bias.T.mm(dy.flatten(1)).view_as(p)  # (K, W, H, r)
        spectra = transforms.spectra(_load(v[chunk], grid, dtype))
        channels = slices(D, p.numel(), CHUNK_ELEMENTS)
        buffers = transforms.buffers(channels[0].stop, p)
        for some in channels:
            g = transforms.convolve(spectra[some], m_b, buffers)
            for g_c, dy_c in zip(g, dy[some], strict=True):
                dp.addcmul_(g_c, dy_c)
            dg = _product(p, dy[some], g)
            transforms.backward_of_convolve(dg, spectra[some], m_b, dm_b, buffers)
        _store(dv[chunk], transforms.backward_of_spectra(spectra))
        del dy, p
        q_n, k_n = (_load(x[chunk], grid, dtype) for x in (q, k))
        q_scale, k_scale = normalizer(q_n, 0), normalizer(k_n, 0)
        q_n, k_n = q_n.mul_(q_scale), k_n.mul_(k_scale)
        spectra, dq_n = transforms.spectra(k_n), torch.empty_like(q_n)
        for some in channels:
            m_a = transforms.matrices(w_a[some])
            dm_a = torch.zeros_like(m_a)
            g = transforms.convolve(spectra[some], m_a, buffers)
            torch.sum(g.mul_(dp), 1, out=dq_n[some])
            dg = _product(dp, q_n[some], g)
            transforms.backward_of_convolve(dg, spectra[some], m_a, dm_a, buffers)
            dw_a[some] += transforms.backward_of_matrices(dm_a)
        dk_n = transforms.backward_of_spectra(spectra)
        _store(dq[chunk], unnormalized(dq_n, q_n, q_scale, 0))
        _store(dk[chunk], unnormalized(dk_n, k_n, k_scale, 0))
    dw_b = transforms.backward_of_matrices(dm_b)[0].contiguous()
    return dq, dk, dv, dw_a, dw_b, dbias


def _product(p: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    """Multiply (K, W, H, r) by (s, W, H, r); the result is (s, W, K, H, r)."""
    K, W, H, r = p.shape
    out = buffer.view(-1, W, K, H, r)
    return torch.mul(p.transpose(0, 1), x.unsqueeze(2), out=out)


def _load(x: Tensor, grid: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Copy (b, N, h, D) to (D, W, H, b * h).

    The first of two copies moves the channels of a token no farther than its heads.
    """
    x = x.unflatten(1, (-1, grid[-1])).permute(2, 1, 0, 4, 3)  # (W, H, b, D, h)
    x = x.to(dtype, copy=True, memory_format=torch.contiguous_format)
    return x.permute(3, 0, 1, 2, 4).contiguous().flatten(3)


def _store(out: Tensor, x: Tensor):
    """Write (D, W, H, b * h) to (b, N, h, D)."""
    b, _, h, _ = out.shape
    out = out.unflatten(1, (-1, x.shape[1]))
    out.copy_(x.unflatten(3, (b, h)).permute(3, 2, 1, 4, 0))
