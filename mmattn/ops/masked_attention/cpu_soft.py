"""A soft mask as attention with scores times alpha, corrected at the neighbors.

PyTorch's flash attention does the N^2 work and the stencil the correction. For the
gradients flash attention gets the corrected output and log-sum-exp, from which it
makes, for all pairs, what a token outside the mask has; the stencil then takes out what
this is for neighbors. Where neighbors weigh much less than with their scores times
alpha, this would cancel what is to be kept: such rows are made again, densely.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from . import cpu_stencil
from .cpu_stencil import Dense

CANCELED = 8.0  # weight taken out, by the weight that is left
ROW_ELEMENTS = 1 << 18  # of the scores of rows that are made again together


def forward(q, k, v, alpha, **stencil):
    """As `cpu_impl.forward`."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    alpha = alpha.to(dtype)
    q_flash, k_flash, v_flash = _flash_inputs(q, k, v, alpha)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_flash, k_flash, v_flash
    )
    dense = Dense(alpha, out.transpose(1, 2), lse)
    out, lse = cpu_stencil.forward(q, k, v, None, dense, **stencil)
    canceled = ~(dense.lse - lse < torch.tensor(CANCELED).log())
    canceled[..., : stencil['num_special']] = False
    for b, h, rows, near in _rows_by_head(canceled, stencil):
        scores = _row_scores(q, k, alpha, b, h, rows, near, dtype)[0]
        lse[b, h, rows] = scores.logsumexp(-1)
        out[b, rows, h] = (scores.softmax(-1) @ v[b, :, h].to(dtype)).to(out.dtype)
    return out, lse


def backward(grad, out, lse, q, k, v, alpha, **stencil):
    """As `cpu_impl.backward`."""
    dtype, num_special = lse.dtype, stencil['num_special']
    alpha = alpha.to(dtype)
    delta = (grad.to(dtype) * out.to(dtype)).sum(-1).mT  # (B, M, N)
    canceled = cpu_stencil.weight_taken_out(q, k, lse, alpha, **stencil) > CANCELED
    canceled[..., :num_special] = False
    elsewhere = canceled.clone()
    elsewhere[..., :num_special] = True  # the stencil makes these
    lse_flash = lse.masked_fill(elsewhere, float('inf'))  # which gives them no weight
    q_flash, k_flash, v_flash = _flash_inputs(q, k, v, alpha)
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad.to(dtype).transpose(1, 2),
        q_flash,
        k_flash,
        v_flash,
        out.to(dtype).transpose(1, 2),
        lse_flash,
        0.0,
        False,
    )
    dq, dk, dv = (x.transpose(1, 2) for x in grads)
    dalpha = torch.einsum('bnmd,bnmd->m', q.to(dtype), dq)
    dq = dq * alpha[:, None]
    *local, _, dalpha_local = cpu_stencil.backward(
        grad, lse_flash, q, k, v, None, Dense(alpha, delta=delta), **stencil
    )
    dalpha += dalpha_local
    dq, dk, dv = (x + y for x, y in zip((dq, dk, dv), local, strict=True))
    scale = q.shape[-1] ** -0.5
    for b, h, rows, near in _rows_by_head(canceled, stencil):
        scores, plain = _row_scores(q, k, alpha, b, h, rows, near, dtype)
        p = (scores - lse[b, h, rows, None]).exp_()
        g = grad[b, rows, h].to(dtype)
        ds = (g @ v[b, :, h].to(dtype).mT).sub_(delta[b, h, rows, None]).mul_(p)
        dalpha[h] += (ds * plain).masked_fill_(near, 0).sum()
        ds = torch.where(near, ds, alpha[h] * ds) * scale
        dq[b, rows, h] += ds @ k[b, :, h].to(dtype)
        dk[b, :, h] += ds.mT @ q[b, rows, h].to(dtype)
        dv[b, :, h] += p.mT @ g
    dq, dk, dv = (
        x.to(q.dtype, memory_format=torch.contiguous_format) for x in (dq, dk, dv)
    )
    return dq, dk, dv, None, dalpha


def _flash_inputs(q, k, v, alpha):
    q, k, v = (x.to(alpha.dtype) for x in (q, k, v))
    return [x.transpose(1, 2) for x in (q * alpha[:, None], k, v)]  # (B, M, N, D)


def _rows_by_head(
    wanted: Tensor, stencil: dict
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Image, head, some of its wanted tokens and whom they see, from (B, M, N)."""
    for b, h in wanted.any(-1).nonzero().tolist():
        tokens = wanted[b, h].nonzero()[:, 0]
        for rows in tokens.split(max(1, ROW_ELEMENTS // wanted.shape[-1])):
            yield b, h, rows, _near(rows, **stencil)


def _near(rows: Tensor, *, grid, kernel_size, num_special, mask_fill) -> Tensor:
    """Rows of `neighborhood_mask` that are patches."""
    tokens = torch.arange(grid[0] * grid[1])
    near = torch.ones(len(rows), num_special + len(tokens), dtype=torch.bool)
    patches = (rows - num_special)[:, None]
    dy = patches // grid[1] - tokens // grid[1]
    dx = patches % grid[1] - tokens % grid[1]
    near[:, num_special:] = torch.maximum(dy.abs(), dx.abs()) <= kernel_size // 2
    return near


def _row_scores(q, k, alpha, b, h, rows, near, dtype):
    """What the softmax gets (rows, N), and the scores themselves."""
    plain = q[b, rows, h].to(dtype) @ k[b, :, h].to(dtype).mT * q.shape[-1] ** -0.5
    return torch.where(near, plain, alpha[h] * plain), plain
