"""Soft masks as attention with scores times alpha, corrected at the neighbors.

PyTorch's flash attention does the N^2 work, and the stencil corrects the neighbors. In
the backward flash attention gets the corrected output and log-sum-exp. It treats all
pairs as if they were outside the mask, and the stencil subtracts this for neighbors.
Where neighbors weigh much less than with their scores times alpha, the subtraction
would cancel digits, so such rows are computed again, densely.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from . import torch_stencil
from .torch_stencil import Dense

CANCELED = 8.0  # limit of the weight taken out over the weight left
ROW_ELEMENTS = 1 << 18  # scores of the rows that are computed again at a time


def forward(q, k, v, alpha, **stencil):
    """Compute `torch_impl.forward` for a soft mask."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    alpha = alpha.to(dtype)
    q_flash, k_flash, v_flash = _flash_inputs(q, k, v, alpha)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_flash, k_flash, v_flash
    )
    dense = Dense(alpha, out.transpose(1, 2), lse)
    out, lse = torch_stencil.forward(q, k, v, None, dense, **stencil)
    canceled = ~(dense.lse - lse < torch.tensor(CANCELED).log())
    canceled[..., : stencil['num_special']] = False
    for b, h, rows, near in _rows_by_head(canceled, stencil):
        scores = _row_scores(q, k, alpha, b, h, rows, near, dtype)[0]
        lse[b, h, rows] = scores.logsumexp(-1)
        out[b, rows, h] = (scores.softmax(-1) @ v[b, :, h].to(dtype)).to(out.dtype)
    return out, lse


def backward(grad, out, lse, q, k, v, alpha, **stencil):
    """Compute `torch_impl.backward` for a soft mask."""
    dtype, num_special = lse.dtype, stencil['num_special']
    alpha = alpha.to(dtype)
    delta = (grad.to(dtype) * out.to(dtype)).sum(-1).mT  # (B, M, N)
    lse_flash = lse.clone()
    lse_flash[..., :num_special] = float('inf')  # gives rows no weight
    dense = Dense(alpha, delta=delta, limit=CANCELED)
    *local, _, dalpha = torch_stencil.backward(
        grad, lse_flash, q, k, v, None, dense, **stencil
    )
    canceled = lse_flash == float('inf')
    canceled[..., :num_special] = False
    q_flash, k_flash, v_flash = _flash_inputs(q, k, v, alpha)
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        _in_rows(grad.to(dtype)).transpose(1, 2),
        q_flash,
        k_flash,
        v_flash,
        out.to(dtype).transpose(1, 2),
        lse_flash,
        0.0,
        False,
    )
    dq, dk, dv = (x.transpose(1, 2) for x in grads)
    dalpha += (q * dq).sum((0, 1, 3))
    dq = dq * alpha[:, None]
    dq, dk, dv = (x + y for x, y in zip(local, (dq, dk, dv), strict=True))
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
    q, k, v = (_in_rows(x.to(alpha.dtype)) for x in (q, k, v))
    return [x.transpose(1, 2) for x in (q * alpha[:, None], k, v)]  # (B, M, N, D)


def _in_rows(x: Tensor) -> Tensor:
    """Return x with the D numbers of a head side by side.

    Flash attention reads them so, whatever the stride; PyTorch 2.10 does not check it.
    """
    return x if x.stride(-1) == 1 else x.contiguous()


def _rows_by_head(
    wanted: Tensor, stencil: dict
) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Yield image, head, some wanted tokens of (B, M, N) and their neighbors."""
    for b, h in wanted.any(-1).nonzero().tolist():
        tokens = wanted[b, h].nonzero()[:, 0]
        for rows in tokens.split(max(1, ROW_ELEMENTS // wanted.shape[-1])):
            yield b, h, rows, _near(rows, **stencil)


def _near(rows: Tensor, *, grid, kernel_size, num_special, mask_fill) -> Tensor:
    """Return some rows of `neighborhood_mask`; all of them are patches."""
    tokens = torch.arange(grid[0] * grid[1])
    near = torch.ones(len(rows), num_special + len(tokens), dtype=torch.bool)
    patches = (rows - num_special)[:, None]
    dy = patches // grid[1] - tokens // grid[1]
    dx = patches % grid[1] - tokens % grid[1]
    near[:, num_special:] = torch.maximum(dy.abs(), dx.abs()) <= kernel_size // 2
    return near


def _row_scores(q, k, alpha, b, h, rows, near, dtype):
    """Return the masked scores (rows, N) and the plain ones."""
    plain = q[b, rows, h].to(dtype) @ k[b, :, h].to(dtype).mT * q.shape[-1] ** -0.5
    return torch.where(near, plain, alpha[h] * plain), plain
