"""Neighborhood attention beside its definition and full attention under a mask.

Stage 1 of DAT++-T: 64 channels in 2 heads, windows of 7 x 7, or the largest that fits a
smaller map. q, k and v are views of one packed tensor, as a model's projection leaves
them. The definition gathers the keys and values of each window. The peer,
`scaled_dot_product_attention`, gets a bias of -inf outside the windows, so it is
quadratic. On a CPU it runs up to `CPU_TOKENS` only.

The network is that of "DAT++: Spatially Dynamic Vision Transformer with Deformable
Attention", https://arxiv.org/abs/2309.01430, table 2.
"""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from mmattn.ops import neighborhood_attention
from mmattn.ops.neighborhood_attention import windows
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_neighborhood_inputs

from . import flex
from .case import Case, Side, grid_of

OPERATOR = 'neighborhood_attention'
SIDES = (14, 28, 56, (200, 334))
RECTANGLES = True
BASELINE = 'scaled_dot_product_attention'
HEADS, WIDTH, KERNEL = 2, 32, 7
CPU_TOKENS = 56**2
# N x N maps, and copies of k or v, that are held at once.
MAPS = {'forward': 1, 'forward+backward': 3}
COPIES = {'forward': 3, 'forward+backward': 4}


def dense_bias(rpb: Tensor, grid: tuple[int, int]) -> Tensor:
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


def cases(side: Side, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    grid = grid_of(side)
    N = prod(grid)
    tensors = make_neighborhood_inputs(
        grid=grid,
        B=batch,
        M=HEADS,
        D=WIDTH,
        K=min(KERNEL, (min(grid) + 1) // 2 * 2 - 1),
        dtype=dtype,
        device=device,
    )
    for x in tensors:
        x.requires_grad_()
    q = tensors[0]
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(q.shape, generator=generator).to(device, dtype)
    backend = OPERATORS[OPERATOR].choose(*tensors)
    float_bytes = max(4, dtype.itemsize)

    def run(backend):
        return lambda *tensors: neighborhood_attention(*tensors, backend=backend)

    def needs(counts, numel):
        return {which: count * numel * float_bytes for which, count in counts.items()}

    definition = f'{OPERATOR} (definition)'
    copies = needs(COPIES, q.numel() * KERNEL**2)
    made = [
        Case(f'{OPERATOR} ({backend})', run(None), tensors, grad, same_as=definition),
        Case(definition, run('reference'), tensors, grad, needs=copies),
    ]
    if device != 'cpu' or N <= CPU_TOKENS:
        pairs = batch * HEADS * N**2
        exponentials = {'forward': pairs, 'forward+backward': 2 * pairs}
        made += [
            Case(
                flex.METHOD,
                flex.neighborhood(grid, (tensors[3].shape[1] + 1) // 2, device),
                tensors,
                grad,
                same_as=definition,
                **flex.options(device),
            ),
            Case(
                BASELINE,
                sdpa_under_mask,
                tensors,
                grad,
                same_as=definition,
                needs=needs(MAPS, pairs),
                exponentials=exponentials,
            ),
        ]
    return made
