"""Neighborhood attention beside its definition and full attention under a mask.

Stage 1 of DAT++-T: 64 channels in 2 heads, windows of 7 x 7, or the largest that fits a
smaller map. q, k and v are views of one packed tensor, as a model's projection leaves
them. The definition gathers the keys and values of each window. The peer,
`scaled_dot_product_attention`, gets a bias of -inf outside the windows, so it is
quadratic. On a CPU it runs up to `CPU_TOKENS` only.

The network comes from "DAT++: Spatially Dynamic Vision Transformer with Deformable
Attention", https://arxiv.org/abs/2309.01430, table 2.
"""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from mmattn.ops.neighborhood_attention import windows

from . import flex
from .case import Case, Grid, ours

SIDES = '14 28 56 200x334'
BASELINE = 'scaled_dot_product_attention'
HEADS, WIDTH, KERNEL = 2, 32, 7
CPU_TOKENS = 56**2


def dense_bias(rpb: Tensor, grid: Grid) -> Tensor:
    """Return the biases of all pairs (M, N, N), which are -inf outside the windows."""
    K = (rpb.shape[1] + 1) // 2
    indices = []
    for side in grid:
        keys = torch.arange(side, device=rpb.device)
        start = windows(side, K, rpb.device)[:, :1]
        seen = (keys >= start) & (keys < start + K)
        indices.append(torch.where(seen, keys - keys[:, None] + K - 1, 2 * K - 1))
    rows, columns = indices
    table = F.pad(rpb, (0, 1, 0, 1), value=-torch.inf)
    bias = table[:, rows[:, None, :, None], columns[:, None, :]]  # (M, H, W, H, W)
    return bias.flatten(3).flatten(1, 2)


def sdpa_under_mask(q: Tensor, k: Tensor, v: Tensor, rpb: Tensor) -> Tensor:
    """Return neighborhood attention as dense attention."""
    bias = dense_bias(rpb, q.shape[1:3]).to(q.dtype)
    tokens = (x.flatten(1, 2).transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    out = F.scaled_dot_product_attention(*tokens, bias[None])
    return out.transpose(1, 2).reshape(q.shape)


def cases(grid: Grid, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    kernel = min(KERNEL, (min(grid) + 1) // 2 * 2 - 1)
    shape = dict(grid=grid, B=batch, M=HEADS, D=WIDTH, K=kernel)
    made = ours('neighborhood_attention', **shape, dtype=dtype, device=device)
    definition = made[-1]
    if device != 'cpu' or prod(grid) <= CPU_TOKENS:
        pairs = batch * HEADS * prod(grid) ** 2
        common = dict(tensors=definition.tensors, grad=definition.grad)
        common |= dict(same_as=definition.method)
        by_flex = flex.neighborhood(grid, kernel, device)
        made += [
            Case(flex.METHOD, by_flex, **common, **flex.options(device)),
            Case(BASELINE, sdpa_under_mask, pairs=pairs, holds_maps=True, **common),
        ]
    return made
