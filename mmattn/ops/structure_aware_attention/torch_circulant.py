"""Structure-aware attention by circulant matrices, for grids of a few dozen tokens.

Convolution with the kernels w_a is a product with their circulant matrices. The kernels
w_b are summed, weighted by the patterns, to the N x N attention map of each head.
"""

import functools
from math import prod

import torch
from torch import Tensor

from ..chunks import image_and_head_slices
from .reference import block_circulant
from .spectrum import column_weights, irfft_grid, rfft_grid
from .torch_normalize import normalizer, unnormalized

CHUNK_ELEMENTS = 1 << 18  # of the convolved keys of some heads: 1 MiB in float32


def forward(q, k, v, w_a, w_b, bias, *, grid):
    """Compute `torch_impl.forward` by circulant matrices."""
    B, N, M, D = q.shape
    K, dtype = bias.shape[1], bias.dtype
    r_a, r_b = _circulants(w_a, w_b, grid)
    out = torch.empty(q.shape, dtype=q.dtype)
    patterns = torch.empty(B, M, K, N, dtype=dtype)
    for images, heads in image_and_head_slices(B, M, K * D * N, CHUNK_ELEMENTS):
        chunk = images, slice(None), heads
        q_n, k_n, v_n = (_load(x[chunk], dtype) for x in (q, k, v))  # (D, r, N)
        q_n, k_n = (x.mul_(normalizer(x, 0)) for x in (q_n, k_n))
        g_a = k_n.bmm(r_a.mT).view(D, -1, K, N)
        p = g_a.mul_(q_n.unsqueeze(2)).sum(0)  # (r, K, N)
        y = _attention(_queries_first(p), r_b).bmm(v_n.permute(1, 2, 0))  # (r, N, D)
        y = y.baddbmm_(p.mT, bias.T.expand(len(p), K, D))
        patterns[images, heads] = p.view(patterns[images, heads].shape)
        _store(out[chunk], y.permute(2, 0, 1))
    return out, patterns


def backward(grad, patterns, q, k, v, w_a, w_b, bias, *, grid):
    """Compute `torch_impl.backward` by circulant matrices."""
    B, N, M, D = q.shape
    K, dtype = bias.shape[1], bias.dtype
    r_a, r_b = _circulants(w_a, w_b, grid)
    dr_a, dr_b, dbias = (bias.new_zeros(x.shape) for x in (r_a, r_b, bias))
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    for images, heads in image_and_head_slices(B, M, K * D * N, CHUNK_ELEMENTS):
        chunk = images, slice(None), heads
        dy, q_n, k_n, v_n = (_load(x[chunk], dtype) for x in (grad, q, k, v))
        q_scale, k_scale = normalizer(q_n, 0), normalizer(k_n, 0)
        q_n, k_n = q_n.mul_(q_scale), k_n.mul_(k_scale)  # (D, r, N)
        p = patterns[images, heads].flatten(0, 1)  # (r, K, N)
        p_queries = _queries_first(p)  # (N, K, r)
        dv_n = _attention(p_queries, r_b).mT.bmm(dy.permute(1, 2, 0))  # (r, N, D)
        _store(dv[chunk], dv_n.permute(2, 0, 1))
        dp = bias.T.expand(len(p), K, D).bmm(dy.transpose(0, 1))  # (r, K, N)
        dp += _backward_of_attention(dy, v_n, p_queries, r_b, dr_b)
        dbias += dy.transpose(0, 1).bmm(p.mT).sum(0)
        g_a = k_n.bmm(r_a.mT).view(D, -1, K, N)
        dq_n = g_a.mul_(dp).sum(2)  # (D, r, N)
        dg_a = torch.mul(q_n.unsqueeze(2), dp, out=g_a).flatten(2)  # (D, r, K * N)
        dr_a.baddbmm_(dg_a.mT, k_n)
        _store(dq[chunk], unnormalized(dq_n, q_n, q_scale, 0))
        _store(dk[chunk], unnormalized(dg_a.bmm(r_a), k_n, k_scale, 0))
        del g_a, dg_a  # before the next ones are made
    del r_a, r_b
    dw_a = _sum_of_circulant(dr_a.view(D, K, N, N), grid)
    dw_b = _sum_of_circulant(dr_b.transpose(0, 1), grid)
    weights = column_weights(grid, w_a)
    dw_a, dw_b = (rfft_grid(dw, grid).mul_(weights) for dw in (dw_a, dw_b))
    return dq, dk, dv, dw_a, dw_b, dbias


def _circulants(w_a, w_b, grid):
    """Return matrices (D, K * N, N) of w_a, and (N, K, N) of w_b, queries first."""
    offsets = _offsets(grid)
    r_a, r_b = (
        irfft_grid(w, grid)
        .flatten(-len(grid))
        .unsqueeze(-2)
        .expand(*w.shape[: -len(grid)], *offsets.shape)
        .gather(-1, offsets.expand(*w.shape[: -len(grid)], -1, -1))
        for w in (w_a, w_b)
    )
    return r_a.flatten(1, 2), r_b.transpose(0, 1)


def _sum_of_circulant(dr: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Return the gradient (..., *grid) of kernels, from that of their matrices."""
    tokens = _offsets(grid)  # [i, offset] too: offset i - n is from token n
    return dr.gather(-1, tokens.expand_as(dr)).sum(-2).unflatten(-1, grid)


@functools.cache
def _offsets(grid: tuple[int, ...]) -> Tensor:
    """Return the index of i - n modulo the grid, for each entry (i, n)."""
    return block_circulant(torch.arange(prod(grid)).view(grid), grid)


def _queries_first(p: Tensor) -> Tensor:
    """Copy (r, K, N) to (N, K, r): batched products of a view would be loops."""
    return p.permute(2, 1, 0).contiguous()


def _attention(p: Tensor, r_b: Tensor) -> Tensor:
    """Return the weights (r, N, N) of queries on tokens, from patterns (N, K, r)."""
    return p.mT.bmm(r_b).transpose(0, 1)


def _backward_of_attention(dy, v, p, r_b, dr_b):
    """Return the gradient of patterns (N, K, r) through the map; add to that of r_b."""
    dattention = dy.permute(1, 2, 0).bmm(v.transpose(0, 1)).transpose(0, 1)
    dr_b.baddbmm_(p, dattention)  # (N, K, r) by (N, r, N)
    return dattention.bmm(r_b.mT).permute(1, 2, 0)  # (r, K, N)


def _load(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy (b, N, h, D) to (D, b * h, N)."""
    x = x.permute(3, 0, 2, 1)
    return x.to(dtype, copy=True, memory_format=torch.contiguous_format).flatten(1, 2)


def _store(out: Tensor, x: Tensor):
    """Write (D, b * h, N) to (b, N, h, D)."""
    b, _, h, _ = out.shape
    out.copy_(x.unflatten(1, (b, h)).permute(1, 3, 2, 0))
