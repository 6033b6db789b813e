"""Masked attention by N x N products, which are the fastest on small maps."""

import torch

from .reference import neighborhood_mask, spread_bias, stencil_offsets


def forward(q, k, v, bias, alpha, *, grid, kernel_size, num_special, mask_fill):
    """Do what `cpu_impl.forward` does."""
    storage, mask = q.dtype, neighborhood_mask(grid, kernel_size, num_special)
    q, k, v = (_heads_first(x) for x in (q, k, v))
    scores = _scores(q, k, mask, bias, alpha, grid, num_special, mask_fill)[0]
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp_() @ v
    return _tokens_first(out, storage), lse


def backward(
    grad, lse, q, k, v, bias, alpha, *, grid, kernel_size, num_special, mask_fill
):
    """Do what `cpu_impl.backward` does."""
    storage, mask = q.dtype, neighborhood_mask(grid, kernel_size, num_special)
    grad, q, k, v = (_heads_first(x) for x in (grad, q, k, v))
    scores, plain = _scores(q, k, mask, bias, alpha, grid, num_special, mask_fill)
    p = scores.sub_(lse[..., None]).exp_()
    dv = p.mT @ grad
    dp = grad @ v.mT
    ds = dp.sub_((p * dp).sum(-1, keepdim=True)).mul_(p)
    dbias = dalpha = None
    if alpha is not None:
        dalpha = (ds * plain).masked_fill_(mask, 0).sum((0, 2, 3))
        ds = torch.where(mask, ds, alpha.to(ds.dtype)[:, None, None] * ds)
    else:
        ds = ds.masked_fill_(~mask, 0)
    if bias is not None:
        offsets = stencil_offsets(grid, kernel_size, num_special).flatten()
        dbias = ds.new_zeros(len(bias), kernel_size**2 + 1)
        dbias.index_add_(1, offsets, ds.sum(0).flatten(1))
        dbias = dbias[:, :-1].view(bias.shape)
    scale = q.shape[-1] ** -0.5
    dq, dk = ds @ k * scale, ds.mT @ q * scale
    dq, dk, dv = (_tokens_first(x, storage) for x in (dq, dk, dv))
    return dq, dk, dv, dbias, dalpha


def _heads_first(x):
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x.to(dtype).transpose(1, 2)


def _tokens_first(x, dtype):
    x = x.transpose(1, 2)
    return x.to(dtype, memory_format=torch.contiguous_format, copy=True)


def _scores(q, k, mask, bias, alpha, grid, num_special, mask_fill):
    plain = q @ k.mT * q.shape[-1] ** -0.5
    scores = plain
    if bias is not None:
        scores = scores + spread_bias(bias.to(q.dtype), grid, num_special)
    if alpha is not None:
        scores = torch.where(mask, scores, alpha.to(q.dtype)[:, None, None] * scores)
    else:
        scores = scores.masked_fill(~mask, 0 if mask_fill == 'zero' else float('-inf'))
    return scores, plain
