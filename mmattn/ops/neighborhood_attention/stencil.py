"""Large maps: the stencil of masked attention, and tiles along the border.

The stencil takes less memory than tiles, but it clips windows at the border. So tiles
compute the K // 2 outermost rows and columns, and replace what the stencil made there.
Small maps are tiles alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..masked_attention import torch_impl as masked
from ..precision import compute_dtype
from .tiles import attend_part, part_gradients, window_width

TILED_PIXELS = 2048  # maps with more pixels are large


class Border(NamedTuple):
    """Two opposite edges of a map, which `attend_part` joins along `axis`."""

    part: str
    axis: int
    edges: tuple[tuple[slice, ...], ...]


def has_statistics(q: Tensor) -> bool:
    """Return whether the stencil runs on a map of queries, rather than tiles alone."""
    is_large = q.shape[1] * q.shape[2] > TILED_PIXELS
    return is_large and masked.unsupported(q) is None


def forward(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output, and the stencil's log-sum-exp (B, M, H * W) where it runs."""
    if not has_statistics(q):
        statistics = q.new_empty(0, dtype=compute_dtype(q.dtype))
        return attend_part(q, k, v, rpb, 'map'), statistics
    tensors, settings = _stencil(q, k, v, rpb)
    out, lse = masked.forward(*tensors, **settings)
    out = out.view(q.shape)
    R = window_width(rpb) // 2
    for part, axis, edges in _borders(q, R):
        joined = attend_part(q, k, v, rpb, part)
        for edge, values in zip(edges, joined.split(R, axis), strict=True):
            out[edge] = values
    return out, lse


def backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rpb: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k, v and rpb."""
    if not has_statistics(q):
        return part_gradients(grad, q, k, v, rpb, 'map')
    K = window_width(rpb)
    inner = grad.clone(memory_format=torch.contiguous_format)
    borders = [*_borders(q, K // 2)]
    for _, _, edges in borders:
        for edge in edges:
            inner[edge] = 0
    tensors, settings = _stencil(q, k, v, rpb)
    *dqkv, dbias, _ = masked.backward(
        inner.flatten(1, 2), out.flatten(1, 2), lse, *tensors, **settings
    )
    drpb = torch.zeros_like(rpb, memory_format=torch.contiguous_format)
    drpb[:, K // 2 : -(K // 2), K // 2 : -(K // 2)] = dbias
    grads = [*(x.view(q.shape) for x in dqkv), drpb]
    for part, axis, edges in borders:
        joined = torch.cat([grad[edge] for edge in edges], axis)
        for total, share in zip(
            grads, part_gradients(joined, q, k, v, rpb, part), strict=True
        ):
            total += share
    return tuple(grads)


def _stencil(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> tuple[list, dict]:
    """Return the arguments of `masked_attention`, whose bias is the table's middle."""
    K = window_width(rpb)
    middle = slice(K // 2, -(K // 2))
    settings = dict(
        grid=tuple(q.shape[1:3]), kernel_size=K, num_special=0, mask_fill='neg_inf'
    )
    tokens = (x.flatten(1, 2) for x in (q, k, v))
    return [*tokens, rpb[:, middle, middle], None], settings


def _borders(q: Tensor, R: int) -> Iterator[Border]:
    """Yield the R outermost rows, then the R outermost columns of the rows between."""
    H, W = q.shape[1:3]
    every, first = slice(None), slice(R)
    yield Border('rows', 1, ((every, first), (every, slice(H - R, H))))
    between = slice(R, H - R)
    yield Border(
        'columns', 2, ((every, between, first), (every, between, slice(W - R, W)))
    )
