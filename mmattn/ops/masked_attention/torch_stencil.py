"""Masked attention in linear time, a product of shifted maps for each offset.

All tokens but the neighbors contribute one term to a row. With a hard mask the term is
u times the sum of all values, where u = e^-lse is the weight of a token outside the
mask. With a soft mask it is the result of attention with scores times alpha, which
`Dense` holds. Neighbors then count with the difference of their two weights.

A key outside the map has the score 0, and with it the weight of a token outside the
mask. Only a bias or `mask_fill='neg_inf'` depends on where the map ends.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .torch_planes import Planes


class Dense(NamedTuple):
    """Hold the attention with all scores times alpha, for a soft mask."""

    alpha: Tensor  # (M,)
    out: Tensor | None = None  # (B, N, M, D)
    lse: Tensor | None = None  # (B, M, N)
    delta: Tensor | None = None  # (B, M, N), product of the final out and its gradient
    limit: float = (
        math.inf
    )  # of the sum over a row's neighbors of e^(alpha score - lse)


def forward(
    q, k, v, bias, dense=None, *, grid, kernel_size, num_special, mask_fill
) -> tuple[Tensor, Tensor]:
    """Compute `torch_impl.forward`, for a soft mask if its `Dense` is given."""
    B, N, M, D = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    planes = Planes(*grid, kernel_size, num_special)
    R2, near = kernel_size**2, kernel_size**2 + num_special
    others = N - near if dense is None and mask_fill == 'zero' else 0
    out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(B, M, N, dtype=dtype)
    for images, heads in planes.groups(q):
        chunk = images, slice(None), heads
        k_p, k_s = planes.load(k[chunk], dtype)
        v_p, v_s = planes.load(v[chunk], dtype)
        total = v_p.sum(-1, keepdim=True) + v_s.sum(1)[..., None]  # (P, D, 1)
        P, bands = len(k_p), planes.bands(total.numel())
        size = planes.length(bands[0])
        q_b, y_b = (planes.blank(P, D, size, dtype=dtype) for _ in range(2))
        temporary = torch.empty(P, D, size, dtype=dtype)
        scores_b = torch.empty(near + (others > 0), P, size, dtype=dtype)
        for band in bands:
            q_r, y, s, tmp = (
                x[..., : planes.length(band)] for x in (q_b, y_b, scores_b, temporary)
            )
            planes.read(q[chunk], band, q_r)
            extra = None if bias is None else bias[heads]
            _scores(q_r, k_p, k_s, extra, planes, band, mask_fill, tmp, s)
            if dense is None:
                row_lse, u = _hard_weights(s, others)
                torch.mul(u[:, None], total, out=y) if others else y.zero_()
            else:
                lse_r = _rows(dense.lse, images, heads, planes, band)
                row_lse = _soft_weights(s, lse_r, _per_plane(dense.alpha[heads], P))
                planes.read(dense.out[chunk], band, y)
                y.mul_((lse_r - row_lse).exp_()[:, None])
            for weight, value in zip(s, planes.windows(v_p, band), strict=False):
                y.addcmul_(weight[:, None], value)
            if num_special:
                y.baddbmm_(v_s.mT, s[R2:near].transpose(0, 1))
            planes.write(out[chunk], band, y)
            planes.write(lse.mT[chunk].unsqueeze(-1), band, row_lse[:, None])
        if num_special:
            a, lse_s = _special_rows(planes.special(q[chunk], dtype), k_p, k_s, planes)
            values = a[0].bmm(v_s).baddbmm_(a[1], planes.whole(v_p).mT)
            planes.store_special(out[chunk], values)
            planes.store_special(lse.mT[chunk].unsqueeze(-1), lse_s)
    return out, lse


def backward(
    grad, lse, q, k, v, bias, dense=None, *, grid, kernel_size, num_special, mask_fill
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Compute `torch_impl.backward` by shifted maps.

    For a soft mask, return what is to be added to the gradients through `Dense`. Rows
    above its limit are left out, and their `lse` is set to inf.
    """
    D, dtype, scale = q.shape[-1], lse.dtype, q.shape[-1] ** -0.5
    planes = Planes(*grid, kernel_size, num_special)
    R2, near = kernel_size**2, kernel_size**2 + num_special
    has_total = dense is None and mask_fill == 'zero'
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    dbias = None if bias is None else torch.zeros(bias.shape, dtype=dtype).flatten(1)
    dalpha = None if dense is None else torch.zeros(dense.alpha.shape, dtype=dtype)
    for images, heads in planes.groups(q):
        chunk = images, slice(None), heads
        k_p, k_s = planes.load(k[chunk], dtype)
        v_p, v_s = planes.load(v[chunk], dtype)
        dk_p, dk_s, dv_p, dv_s = (torch.zeros_like(x) for x in (k_p, k_s, v_p, v_s))
        total = v_p.sum(-1, keepdim=True) + v_s.sum(1)[..., None]  # (P, D, 1)
        dtotal = torch.zeros_like(total)
        P, bands = len(k_p), planes.bands(total.numel())
        size = planes.length(bands[0])
        q_b, g_b = (planes.blank(P, D, size, dtype=dtype) for _ in range(2))
        temporary = torch.empty(P, D, size, dtype=dtype)
        scores_b, da_b = (torch.empty(near, P, size, dtype=dtype) for _ in range(2))
        for band in bands:
            q_r, g_r, s, da, tmp = (
                x[..., : planes.length(band)]
                for x in (q_b, g_b, scores_b, da_b, temporary)
            )
            planes.read(q[chunk], band, q_r)
            planes.read(grad[chunk], band, g_r)
            extra = None if bias is None else bias[heads]
            _scores(q_r, k_p, k_s, extra, planes, band, mask_fill, tmp, s)
            lse_r = _rows(lse, images, heads, planes, band)
            _products(g_r, v_p, v_s, planes, band, tmp, da)
            if dense is None:
                sums = (total, dtotal) if has_total else None
                ds, weights = _hard_gradients(s, da, lse_r, g_r, sums)
            else:
                alpha = _per_plane(dense.alpha[heads], P)
                p_dense = (s * alpha).sub_(lse_r).exp_()
                canceled = p_dense.sum(0) > dense.limit
                planes.ends(canceled).fill_(False)
                if canceled.any():
                    lse_r.masked_fill_(canceled, math.inf)
                    p_dense.masked_fill_(canceled, 0)
                    planes.write(lse.mT[chunk].unsqueeze(-1), band, lse_r[:, None])
                da -= _rows(dense.delta, images, heads, planes, band)
                ds, weights, share = _soft_gradients(s, da, lse_r, alpha, p_dense)
                share = planes.patches(share).sum((0, 2, 3))
                dalpha[heads] -= _over_images(share, images)
            planes.ends(ds).zero_()
            planes.ends(weights).zero_()
            if bias is not None:
                inside = ds[:R2].masked_fill_(planes.outside(band), 0)
                dbias[heads] += _over_images(inside.sum(-1).T, images)
            ds.mul_(scale)
            for ds_t, w_t, dk_t, dv_t in zip(
                ds,
                weights,
                planes.windows(dk_p, band),
                planes.windows(dv_p, band),
                strict=False,
            ):
                dk_t.addcmul_(ds_t[:, None], q_r)
                dv_t.addcmul_(w_t[:, None], g_r)
            dq_r = tmp.zero_()
            for ds_t, k_t in zip(ds, planes.windows(k_p, band), strict=False):
                dq_r.addcmul_(ds_t[:, None], k_t)
            if num_special:
                ds, weights = (x[R2:].transpose(0, 1) for x in (ds, weights))
                dq_r.baddbmm_(k_s.mT, ds)
                dk_s.baddbmm_(ds, q_r.mT)
                dv_s.baddbmm_(weights, g_r.mT)
            planes.write(dq[chunk], band, dq_r)
        if num_special:
            q_s, g_s = (planes.special(x[chunk], dtype) for x in (q, grad))
            a = _special_rows(q_s, k_p, k_s, planes)[0]
            da = g_s.bmm(v_s.mT), g_s.bmm(planes.whole(v_p))
            pairs = list(zip(a, da, strict=True))
            delta = sum((x * y).sum(-1, keepdim=True) for x, y in pairs)
            ds = [x * (y - delta) * scale for x, y in pairs]
            dq_s = ds[0].bmm(k_s).baddbmm_(ds[1], planes.whole(k_p).mT)
            planes.store_special(dq[chunk], dq_s)
            for x, y_s, y_p, rows in ((q_s, dk_s, dk_p, ds), (g_s, dv_s, dv_p, a)):
                y_s.baddbmm_(rows[0].mT, x)
                planes.whole(y_p).baddbmm_(x.mT, rows[1])
        if has_total:
            dv_p += dtotal
            dv_s += dtotal.mT
        for out, y_p, y_s in ((dk, dk_p, dk_s), (dv, dv_p, dv_s)):
            planes.write(out[chunk], planes.rows, planes.whole(y_p))
            planes.store_special(out[chunk], y_s)
    return dq, dk, dv, None if bias is None else dbias.view(bias.shape), dalpha


def _scores(q, k_p, k_s, bias, planes, band, mask_fill, tmp, out):
    """Write the scores of a band and its neighbors to `out`, (R^2 + x, P, length)."""
    _products(q, k_p, k_s, planes, band, tmp, out)
    near, R2 = planes.R**2 + planes.num_special, planes.R**2
    out[:near].mul_(q.shape[1] ** -0.5)
    if bias is not None:
        bias = bias.to(out.dtype).flatten(1).T  # (R^2, h)
        out[:R2] += bias.repeat(1, len(q) // bias.shape[1])[..., None]
    if bias is not None or mask_fill == 'neg_inf':
        fill = 0 if mask_fill == 'zero' else float('-inf')
        out[:R2].masked_fill_(planes.outside(band), fill)


def _products(x, y_p, y_s, planes, band, tmp, out):
    """Write q.k, or g.v, of a band and its neighbors to `out`."""
    R2 = planes.R**2
    for y, out_t in zip(planes.windows(y_p, band), out, strict=False):
        torch.mul(x, y, out=tmp)
        torch.sum(tmp, 1, out=out_t)
    if planes.num_special:
        out[R2 : R2 + planes.num_special] = y_s.bmm(x).transpose(0, 1)


def _hard_weights(s: Tensor, others: int) -> tuple[Tensor, Tensor | None]:
    """Turn scores (near, P, l) into weights, less the weight of a token outside.

    `others` tokens beyond those of `s` have a score of 0. One more row of `s`, which is
    not written yet, stands for all of them. Return the rows' lse and a token's weight.
    """
    if others:
        s[-1] = math.log(others)
    m = s.amax(0)
    z = s.sub_(m).exp_().sum(0)
    s.div_(z)
    u = None
    if others:
        u = s[-1].div_(others)
        s[:-1].sub_(u)
    return z.log_().add_(m), u


def _soft_weights(s: Tensor, lse_dense: Tensor, alpha: Tensor) -> Tensor:
    """Turn scores (near, P, l) into weights, less those times alpha; return lse."""
    m = torch.maximum(s.amax(0), lse_dense)
    s_dense = (s * alpha).sub_(m).exp_()
    s.sub_(m).exp_().sub_(s_dense)
    z = s.sum(0).add_((lse_dense - m).exp_())
    s.div_(z)
    return z.log_().add_(m)


def _hard_gradients(s, da, lse, grad, sums):
    """Return gradients of scores and weights, (near, P, l), less a token outside.

    `s` and `da`, the products of gradients and values, are overwritten. `sums` holds
    the sum of all values and its gradient (P, D, 1), which is added to. It is None with
    'neg_inf'.
    """
    p = s.sub_(lse).exp_()
    delta = (p * da).sum(0)
    if sums is None:
        return da.sub_(delta).mul_(p), p
    total, dtotal = sums
    u = lse.neg().exp_()
    dtotal.baddbmm_(grad, u[..., None])
    delta += u * (total.mT.bmm(grad)[:, 0] - da.sum(0))
    return da.sub_(delta).mul_(p), p.sub_(u)


def _soft_gradients(s, da, lse, alpha, p_dense):
    """Return gradients of scores, weights and the share of dalpha, less `Dense`.

    The caller has subtracted delta from `da`. `p_dense` are the weights of `Dense`.
    """
    ds_dense = p_dense * da
    share = s * ds_dense
    p = s.sub_(lse).exp_()
    ds = da.mul_(p).sub_(ds_dense.mul_(alpha))
    return ds, p.sub_(p_dense), share


def _special_rows(q, k_p, k_s, planes):
    """Return weights on special tokens (P, x, x) and planes (P, x, ...), and lse."""
    q = q * q.shape[-1] ** -0.5
    s = [q.bmm(k_s.mT), q.bmm(planes.whole(k_p))]
    planes.ends(s[1]).fill_(float('-inf'))
    lse = torch.cat(s, -1).logsumexp(-1, keepdim=True)
    return [x.sub_(lse).exp_() for x in s], lse


def _rows(x: Tensor, images: slice, heads: slice, planes: Planes, band: slice):
    """Return a band of (B, M, N), (P, l)."""
    x = x.mT[images, :, heads, None]
    out = planes.blank(x.shape[0] * x.shape[2], 1, planes.length(band), dtype=x.dtype)
    planes.read(x, band, out)
    return out[:, 0]


def _per_plane(x: Tensor, P: int) -> Tensor:
    """Repeat (h,) to (P, 1)."""
    return x.repeat(P // len(x))[:, None]


def _over_images(x: Tensor, images: slice) -> Tensor:
    """Sum (P, ...) over images to (h, ...)."""
    return x.unflatten(0, (images.stop - images.start, -1)).sum(0)
