"""Masked attention by N x N products, which are the fastest on small maps.

Masks are applied to the bits of floats: it takes a tenth of the time of `masked_fill`,
and a NaN outside a mask becomes 0.
"""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..chunks import image_and_head_slices
from ..workspace import heads_first, product, scratch
from .reference import neighborhood_mask, stencil_offsets

CHUNK_ELEMENTS = 1 << 19  # of the maps of some heads: 2 MiB in float32
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


class Mask(NamedTuple):
    """A mask in the forms that it is applied in, each (N, N)."""

    inside: Tensor  # 1 or 0
    bits: Tensor  # integers with all bits set inside, and 0 outside
    fill: Tensor  # integers with the bits of -inf outside, and 0 inside


@functools.lru_cache(maxsize=4)
def _mask(grid, kernel_size, num_special, dtype) -> Mask:
    with torch.inference_mode(False):  # the next call may be outside of it
        inside = neighborhood_mask(grid, kernel_size, num_special)
        bits = inside.to(BITS[dtype]).neg()
        infinity = torch.tensor(float('-inf'), dtype=dtype).view(BITS[dtype])
        return Mask(inside.to(dtype), bits, infinity & ~bits)


@functools.lru_cache(maxsize=4)
def _offsets(grid, kernel_size, num_special) -> Tensor:
    with torch.inference_mode(False):
        return stencil_offsets(grid, kernel_size, num_special)


def forward(q, k, v, bias, alpha, *, mask_fill, **stencil):
    """Compute `torch_impl.forward` by N x N products."""
    B, N, M, _ = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    mask = _mask(**stencil, dtype=dtype)
    out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(B, M, N, dtype=dtype)
    for images, heads in image_and_head_slices(B, M, N**2, CHUNK_ELEMENTS):
        chunk = images, slice(None), heads
        q_p, k_p, v_p = (
            heads_first(name, x[chunk], dtype)
            for name, x in (('q', q), ('k', k), ('v', v))
        )
        factor, added = _extras(bias, alpha, heads, mask, stencil)
        s = _masked_scores(q_p, k_p, factor, added, mask, mask_fill)[1]
        top = s.amax(-1, keepdim=True)
        total = s.sub_(top).exp_().sum(-1, keepdim=True)
        values = product('out', s, v_p).div_(total)
        lse_c = lse[images, heads]
        out[chunk] = values.unflatten(0, lse_c.shape[:2]).transpose(1, 2)
        lse_c.copy_(total.log_().add_(top).view(lse_c.shape))
    return out, lse


def backward(grad, out, lse, q, k, v, bias, alpha, *, mask_fill, **stencil):
    """Compute `torch_impl.backward` by N x N products."""
    B, N, M, D = q.shape
    dtype, scale = lse.dtype, D**-0.5
    mask = _mask(**stencil, dtype=dtype)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    dbias = dalpha = None
    if bias is not None:
        dbias = torch.zeros(len(bias), bias[0].numel() + 1, dtype=dtype)
    if alpha is not None:
        dalpha = torch.zeros(alpha.shape, dtype=dtype)
        outside = 1 - mask.inside.flatten()
    for images, heads in image_and_head_slices(B, M, N**2, CHUNK_ELEMENTS):
        chunk = images, slice(None), heads
        g_p, q_p, k_p, v_p = (
            heads_first(name, x[chunk], dtype)
            for name, x in (('grad', grad), ('q', q), ('k', k), ('v', v))
        )
        factor, added = _extras(bias, alpha, heads, mask, stencil)
        plain, p = _masked_scores(q_p, k_p, factor, added, mask, mask_fill)
        lse_c = lse[images, heads]
        p.sub_(lse_c.flatten(0, 1)[..., None]).exp_()
        if out.dtype == dtype:
            values = heads_first('out', out[chunk], dtype)
        else:  # rounded to half precision, it would leave errors in the gradients
            values = product('out', p, v_p)
        delta = (values * g_p).sum(-1, keepdim=True)
        ds = product('ds', g_p, v_p.mT).sub_(delta).mul_(p)
        maps = ds.unflatten(0, lse_c.shape[:2])
        if alpha is None:
            ds.view(mask.bits.dtype).bitwise_and_(mask.bits)
        else:
            share = plain.mul_(ds).flatten(1) @ outside
            dalpha[heads] += share.view(lse_c.shape[:2]).sum(0)
            maps.mul_(factor)
        if bias is not None:
            offsets = _offsets(**stencil).flatten()
            dbias[heads].index_add_(1, offsets, maps.sum(0).flatten(1))
        for dx, x_p in (
            (dq, product('dq', ds, k_p, scale)),
            (dk, product('dk', ds.mT, q_p, scale)),
            (dv, product('dv', p.mT, g_p)),
        ):
            dx[chunk] = x_p.unflatten(0, lse_c.shape[:2]).transpose(1, 2)
    if bias is not None:
        dbias = dbias[:, :-1].contiguous().view(bias.shape)
    return dq, dk, dv, dbias, dalpha


def _extras(bias, alpha, heads, mask: Mask, stencil):
    """Return factors of the scores, 1 or alpha, or what is added, (h, N, N) or None."""
    dtype = mask.inside.dtype
    factor = added = None
    if alpha is not None:
        alpha = alpha[heads].to(dtype)[:, None, None]
        factor = scratch('factor', len(alpha), *mask.inside.shape, like=mask.inside)
        torch.mul(mask.inside, 1 - alpha, out=factor).add_(alpha)
    if bias is not None:
        bias = F.pad(bias[heads].to(dtype).flatten(1), (0, 1))
        added = bias[:, _offsets(**stencil)]
    return factor, added


def _masked_scores(q, k, factor, added, mask: Mask, mask_fill):
    """Return the scores before and after the mask, (P, N, N).

    A hard mask overwrites the first.
    """
    plain = product('plain', q, k.mT, q.shape[-1] ** -0.5)
    if factor is not None:
        masked = scratch('masked', *plain.shape, like=plain)
        shape = -1, *factor.shape
        torch.mul(plain.view(shape), factor, out=masked.view(shape))
        return plain, masked
    if added is not None:
        plain.view(-1, *added.shape).add_(added)
    bits = plain.view(mask.bits.dtype).bitwise_and_(mask.bits)
    if mask_fill == 'neg_inf':
        bits.bitwise_or_(mask.fill)
    return plain, plain
