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
from .dense import dense_attention, map_bytes, sdpa

OPERATOR = 'structure_aware_attention'
SIDES = (7, 14, 28, 56, 84)
DEFINITION = 'structure_aware_attention (definition)'
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


def operator_cases(
    side: Side,
    batch: int,
    device: str,
    dtype: torch.dtype,
    *,
    channels: int,
    patterns: int,
) -> list[Case]:
    """Return cases of the operator as dispatched, and of its definition."""
    sizes = dict(B=batch, M=channels // WIDTH, D=WIDTH, K=patterns)
    options = dict(grid=grid_of(side), dtype=dtype, device=device)
    inputs = leaves(make_structure_aware_inputs(**sizes, **options))
    grad = random_grad(inputs[0].shape, device, dtype)
    dispatched, definition = ours(OPERATOR, structure_aware_attention, inputs, grad)
    flops = dft_flops(side, batch, channels, patterns)
    return [replace(dispatched, dft_flops=flops), definition]


def cases(side: Side, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    sizes = dict(channels=CHANNELS, patterns=PATTERNS)
    made = operator_cases(side, batch, device, dtype, **sizes)
    qkv, grad = made[0].tensors[:3], made[0].grad
    needs = map_bytes(batch, prod(grid_of(side)), CHANNELS // WIDTH, dtype)
    return [
        *made,
        Case(BASELINE, sdpa, qkv, grad),
        Case('dense_attention', dense_attention, qkv, grad, needs=needs),
    ]
