"""Structure-aware attention beside its one-shot FFT form and softmax attention.

The width of LiSANet-I: 192 channels in 12 heads, 16 patterns. q, k and v are views of
one packed tensor, as a model's projection leaves them, and every method takes and
returns (B, N, M, D). The definition transforms all patterns at once and holds two maps
of N x C x K numbers. Kernels are transformed in every call, as in training.
"""

from dataclasses import replace
from math import prod

import torch

from mmattn.ops import structure_aware_attention
from tools.benchmark.inputs import make_structure_aware_inputs

from .case import Case, Side, by_pass, grid_of, leaves, ours, random_grad
from .dense import dense_attention, sdpa

OPERATOR = 'structure_aware_attention'
SIDES = (7, 14, 28, 56, 84)
RECTANGLES = True
BASELINE = 'scaled_dot_product_attention'
CHANNELS, PATTERNS = 192, 16
WIDTH = 16  # of a head, in every network of the paper


def dft_flops(side: Side, batch: int, channels: int, patterns: int) -> dict[str, int]:
    """Return the FLOPs of the transforms as products with DFT matrices, by pass.

    A half-spectrum takes H complex products along one axis and W real ones along the
    other. The forward has one transform of k and of v and K of the products of each;
    the backward as many, if none were computed twice.
    """
    H, W = grid_of(side)
    half = W // 2 + 1
    transforms = batch * channels * (2 + 2 * patterns)
    return by_pass((1, 2), 2 * transforms * H * half * (4 * H + 2 * W))


def cases(side: Side, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    grid, heads = grid_of(side), CHANNELS // WIDTH
    sizes = dict(grid=grid, B=batch, M=heads, D=WIDTH, K=PATTERNS)
    inputs = leaves(make_structure_aware_inputs(**sizes, dtype=dtype, device=device))
    qkv = inputs[:3]
    grad = random_grad(qkv[0].shape, device, dtype)
    *backends, definition = ours(OPERATOR, structure_aware_attention, inputs, grad)
    flops = dft_flops(side, batch, CHANNELS, PATTERNS)
    maps = dict(pairs=batch * heads * prod(grid) ** 2, holds_maps=True)
    return [
        *(replace(case, dft_flops=flops) for case in backends),
        definition,
        Case(BASELINE, sdpa, qkv, grad),
        Case('dense_attention', dense_attention, qkv, grad, **maps),
    ]
