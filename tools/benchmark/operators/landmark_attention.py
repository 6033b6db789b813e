"""Landmark attention beside dense attention and SDPA, as the paper's Figure 3.

Stage 3 of iViT-T: 320 channels in 10 heads, 49 landmarks. q, k and v are views of one
packed tensor, as a model's projection leaves them, and every method takes and returns
(B, N, M, D). The figure is of "Interactive Multi-Head Self-Attention with Linear
Complexity", https://arxiv.org/abs/2402.17507, and of a block; this is the attention.
"""

from dataclasses import replace
from math import prod

import torch

from .case import Case, Grid, leaves, ours
from .dense import dense_attention, sdpa

SIDES = '14 28 42 56 84 128'
BASELINE = 'scaled_dot_product_attention'
HEADS, WIDTH, LANDMARKS = 10, 32, 49
EXPAND = 2  # mixed heads of a head: the default of `InteractiveAttention`


def cases(grid: Grid, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    N = prod(grid)
    shape = dict(B=batch, N=N, M=HEADS, D=WIDTH, L=LANDMARKS)
    shape |= dict(dtype=dtype, device=device)
    *backends, definition = ours('landmark_attention', **shape, E=EXPAND * HEADS)
    *unmixed, _ = ours('landmark_attention', **shape)
    qkv, mixing, grad = definition.tensors[:3], definition.tensors[5:7], definition.grad
    # The paper's dense interaction mixes M heads to M, and in the dtype of the maps.
    square = leaves(w[:HEADS, :HEADS].detach().to(dtype) for w in mixing)
    maps = dict(pairs=batch * HEADS * N**2, holds_maps=True)
    mixed = [*qkv, *square], grad
    return [
        *backends,
        *(
            replace(case, method=f'{case.method}, no interaction', same_as=None)
            for case in unmixed
        ),
        definition,
        Case(BASELINE, sdpa, qkv, grad),
        Case('dense_attention', dense_attention, qkv, grad, **maps),
        Case('dense_attention, interaction', dense_attention, *mixed, **maps),
    ]
