"""Structure-aware attention beside its one-shot FFT form and softmax attention.

The width of LiSANet-I: 192 channels in 12 heads, 16 patterns. q, k and v are views of
one packed tensor, as a model's projection leaves them, and every method takes and
returns (B, N, M, D). The definition transforms all patterns at once and holds two maps
of N x C x K numbers. Kernels are transformed in every call, as in training.
"""

from dataclasses import replace
from math import prod

import torch

from .case import Case, Grid, by_pass, ours
from .dense import dense_attention, sdpa

SIDES = '7 14 28 56 84'
BASELINE = 'scaled_dot_product_attention'
CHANNELS, PATTERNS = 192, 16
WIDTH = 16  # of a head, in every network of the paper


def dft_flops(grid: Grid, batch: int) -> dict[str, int]:
    """Return the FLOPs of the transforms as products with DFT matrices, by pass.

    A half-spectrum takes H complex products along one axis and W real ones along the
    other. The forward has one transform of k and of v and K of the products of each;
    the backward as many, if none were computed twice.
    """
    H, W = grid
    half = W // 2 + 1
    transforms = batch * CHANNELS * (2 + 2 * PATTERNS)
    return by_pass((1, 2), 2 * transforms * H * half * (4 * H + 2 * W))


def cases(grid: Grid, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    heads = CHANNELS // WIDTH
    shape = dict(grid=grid, B=batch, M=heads, D=WIDTH, K=PATTERNS)
    shape |= dict(dtype=dtype, device=device)
    *backends, definition = ours('structure_aware_attention', **shape)
    qkv, grad = definition.tensors[:3], definition.grad
    flops = dft_flops(grid, batch)
    maps = dict(pairs=batch * heads * prod(grid) ** 2, holds_maps=True)
    return [
        *(replace(case, dft_flops=flops) for case in backends),
        definition,
        Case(BASELINE, sdpa, qkv, grad),
        Case('dense_attention', dense_attention, qkv, grad, **maps),
    ]
