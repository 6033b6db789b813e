"""Structure-aware attention beside its one-shot FFT form and softmax attention.

The width of LiSANet-I: 192 channels in 12 heads, 16 patterns. q, k and v are views of
one packed tensor, as a model's projection leaves them, and every method takes and
returns (B, N, M, D). The definition transforms all patterns at once and holds two maps
of N x C x K numbers. Kernels are transformed in every call, as in training.
"""

from math import prod

import torch

from mmattn.ops import structure_aware_attention
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_structure_aware_inputs

from .case import Case, Side, grid_of
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
    forward = 2 * transforms * H * half * (4 * H + 2 * W)
    return {'forward': forward, 'forward+backward': 2 * forward}


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
    inputs = make_structure_aware_inputs(
        grid=grid_of(side),
        B=batch,
        M=channels // WIDTH,
        D=WIDTH,
        K=patterns,
        dtype=dtype,
        device=device,
    )
    for x in inputs:
        x.requires_grad_()
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(inputs[0].shape, generator=generator).to(device, dtype)
    backend = OPERATORS[OPERATOR].choose(*inputs)

    def run(backend):
        return lambda *tensors: structure_aware_attention(*tensors, backend=backend)

    return [
        Case(
            f'{OPERATOR} ({backend})',
            run(backend),
            inputs,
            grad,
            same_as=DEFINITION,
            dft_flops=dft_flops(side, batch, channels, patterns),
        ),
        Case(DEFINITION, run('reference'), inputs, grad),
    ]


def cases(side: Side, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    ours, definition = operator_cases(
        side, batch, device, dtype, channels=CHANNELS, patterns=PATTERNS
    )
    qkv, grad = ours.tensors[:3], ours.grad
    needs = map_bytes(batch, prod(grid_of(side)), CHANNELS // WIDTH, dtype)
    return [
        ours,
        definition,
        Case(BASELINE, sdpa, qkv, grad),
        Case('dense_attention', dense_attention, qkv, grad, needs=needs),
    ]
