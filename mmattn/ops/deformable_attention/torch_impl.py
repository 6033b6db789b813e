"""Deformable attention by matrix products, one block of the scores at a time.

In a block keys are rows and queries are columns, (P, k, n), so that the bias of a key
is a piece of an H x W map. A plane, one of P, is a head of an image.
"""

from collections.abc import Iterator
from itertools import starmap

import torch
from torch import Tensor

from ..chunks import image_and_head_slices, slices
from ..workspace import scratch
from .reference import query_positions, sampled_bias
from .torch_blocks import Chunk
from .torch_taps import TapBias
from .torch_unit_step import UnitStepBias
from .torch_windows import Axis

BLOCK_ELEMENTS = 1 << 18  # of scores: 1 MiB in float32
GPU_BLOCK_ELEMENTS = 1 << 24
BLOCK_QUERIES = 1 << 13  # leaves a block enough keys for fast products
# Up to this many pairs of a query and a key, autograd of the reference is faster.
REFERENCE_PAIRS = 1 << 18


def unsupported(*tensors: Tensor) -> str | None:
    """Return None: matrix products run on any device, in a fixed order."""
    return None


def prefers_reference(q: Tensor, k: Tensor, *tensors: Tensor, **needs: bool) -> bool:
    """Return whether the reference is faster than this backend, also without gradients."""
    return q.device.type == 'cpu' and q.shape[1] * k.shape[1] <= REFERENCE_PAIRS


def forward(q, k, v, positions, table, *, grid, align_corners):
    """Return the output and each row's log of the sum of exponentials (B, M, N)."""
    if prefers_reference(q, k):  # in a graph, which keeps the operator for all sizes
        return _by_definition(q, k, v, positions, table, grid, align_corners)
    dtype = torch.promote_types(q.dtype, torch.float32)
    B, N, M, D = q.shape
    out = torch.empty(B, N, M, D, dtype=q.dtype, device=q.device)
    lse = torch.empty(B, M, N, dtype=dtype, device=q.device)
    for chunk in _chunks(q, k):
        q_p, k_p, v_p = (chunk.planes(x, dtype) for x in (q, k, v))
        k_p *= D**-0.5
        bias = _make_bias(chunk, q, positions, table, grid, align_corners)
        for rows, queries, blocks in _blocks(q_p, k_p, grid):
            bias.set_rows(rows)
            values, lse_r = _attend(bias, q_p[:, queries], k_p, v_p, blocks)
            out[chunk.images, queries, chunk.heads] = chunk.split(values).transpose(
                1, 2
            )
            lse[chunk.images, chunk.heads, queries] = chunk.split(lse_r)[:, :, 0]
    return out, lse


def _by_definition(q, k, v, positions, table, grid, align_corners):
    """Return what `forward` does, from the scores of all pairs."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    positions, table = positions.to(dtype), table.to(dtype)
    scores = sampled_bias(table, positions, grid, align_corners=align_corners)
    q_h, k_h, v_h = (x.to(dtype).transpose(1, 2) for x in (q, k, v))
    scores += (q_h * q.shape[-1] ** -0.5) @ k_h.mT
    lse = scores.logsumexp(-1)
    out = scores.sub_(lse[..., None]).exp_() @ v_h
    return out.transpose(1, 2).contiguous().to(q.dtype), lse


def backward(grad, out, lse, q, k, v, positions, table, *, grid, align_corners):
    """Return the gradients of q, k, v, positions and table."""
    dtype, scale, M = lse.dtype, q.shape[-1] ** -0.5, q.shape[2]
    dq, dk, dv = (
        torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)
    )
    B, G, K, _ = positions.shape
    dpositions = lse.new_zeros(B, M, K, 2)
    dtable = torch.zeros_like(table, dtype=dtype)
    for chunk in _chunks(q, k):
        g_p, q_p, k_p, v_p = (chunk.planes(x, dtype) for x in (grad, q, k, v))
        lse_p = lse[chunk.images, chunk.heads].flatten(0, 1)[:, None]
        dq_p, dk_p, dv_p = (torch.zeros_like(x) for x in (q_p, k_p, v_p))
        k_p *= scale
        bias = _make_bias(chunk, q, positions, table, grid, align_corners)
        for rows, queries, blocks in _blocks(q_p, k_p, grid):
            bias.set_rows(rows)
            q_r, g_r, dq_r = (x[:, queries] for x in (q_p, g_p, dq_p))
            if out.dtype == dtype:
                values = chunk.planes(out[:, queries], dtype)
            else:  # rounded to half precision, it would leave errors in the gradients
                values = _attend(bias, q_r, k_p, v_p, blocks)[0]
            lse_r, delta = lse_p[..., queries], values.mul_(g_r).sum(-1)[:, None]
            for keys in blocks:
                p, parts = bias.make(keys)
                p.baddbmm_(k_p[:, keys], q_r.mT).sub_(lse_r).exp_()
                dv_p[:, keys].baddbmm_(p, g_r)
                ds = scratch('ds', *p.shape, like=p)
                torch.bmm(v_p[:, keys], g_r.mT, out=ds).sub_(delta).mul_(p)
                dq_r.baddbmm_(ds.mT, k_p[:, keys])
                dk_p[:, keys].baddbmm_(ds, q_r, alpha=scale)
                bias.add_gradients(ds, parts)
        for x, x_p in ((dq, dq_p), (dk, dk_p), (dv, dv_p)):
            x[chunk.images, :, chunk.heads] = chunk.split(x_p).transpose(1, 2)
        dpositions_p, dtable_p = bias.gradients()
        dpositions[chunk.images, chunk.heads] = chunk.split(dpositions_p)
        dtable[chunk.heads] += dtable_p
    dpositions = dpositions.unflatten(1, (G, M // G)).sum(2)
    return dq, dk, dv, dpositions.to(positions.dtype), dtable.to(table.dtype)


def _attend(bias, q_r, k_p, v_p, blocks):
    """Return output (P, n, D) and log of the sum of exponentials (P, 1, n)."""
    values = total = top = None
    for keys in blocks:
        s = bias.make(keys)[0].baddbmm_(k_p[:, keys], q_r.mT)
        old, top = top, s.amax(1, keepdim=True)
        if old is None:
            s.sub_(top).exp_()
            total, values = s.sum(1, keepdim=True), s.mT.bmm(v_p[:, keys])
            continue
        top = torch.maximum(top, old)
        factor = old.sub_(top).exp_()
        s.sub_(top).exp_()
        total.mul_(factor).add_(s.sum(1, keepdim=True))
        values.mul_(factor.mT).baddbmm_(s.mT, v_p[:, keys])
    values /= total.mT
    return values, total.log_().add_(top)


def _elements(x: Tensor) -> int:
    return BLOCK_ELEMENTS if x.device.type == 'cpu' else GPU_BLOCK_ELEMENTS


def _chunks(q: Tensor, k: Tensor) -> Iterator[Chunk]:
    B, N, M, _ = q.shape
    pairs = N * k.shape[1]
    return starmap(Chunk, image_and_head_slices(B, M, pairs, _elements(q)))


def _blocks(q_p, k_p, grid) -> Iterator[tuple[slice, slice, list[slice]]]:
    """Yield rows of the grid, their queries, and the keys of each of their blocks."""
    H, W = grid
    for rows in slices(H, W, BLOCK_QUERIES):
        queries = slice(rows.start * W, rows.stop * W)
        pairs = len(q_p) * (queries.stop - queries.start)
        yield rows, queries, slices(k_p.shape[1], pairs, _elements(q_p))


def _make_bias(chunk, q, positions, table, grid, align_corners):
    dtype = torch.promote_types(q.dtype, torch.float32)
    queries = query_positions(grid, align_corners, dtype=torch.float64, device=q.device)
    queries, (Th, Tw) = queries.unflatten(0, grid), table.shape[1:]
    axes = Axis(queries[:, 0, 1], Th), Axis(queries[0, :, 0], Tw)
    is_unit_step = align_corners and (Th, Tw) == tuple(2 * side - 1 for side in grid)
    positions = chunk.positions(positions, q.shape[2], dtype)
    kind = UnitStepBias if is_unit_step else TapBias
    return kind(positions, table[chunk.heads].to(dtype), axes)
