"""Landmark attention beside dense attention and SDPA, as the paper's Figure 3.

Stage 3 of iViT-T: 320 channels in 10 heads, 49 landmarks. q, k and v are views of one
packed tensor, as a model's projection leaves them, and every method takes and returns
(B, N, M, D). The figure is of "Interactive Multi-Head Self-Attention with Linear
Complexity", https://arxiv.org/abs/2402.17507; it times a block of ViT-S with its
projections, this the attention alone.
"""

from math import prod

from mmattn.ops import landmark_attention
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_landmark_inputs

from .case import Case, Side, grid_of
from .dense import dense_attention, map_bytes, sdpa

SIDES = (14, 28, 42, 56, 84, 128)
RECTANGLES = True
BASELINE = 'scaled_dot_product_attention'
HEADS, WIDTH, LANDMARKS = 10, 32, 49
EXPAND = 2  # mixed heads of a head: the default of `InteractiveAttention`


def cases(side: Side, batch: int, device: str, dtype) -> list[Case]:
    N = prod(grid_of(side))
    inputs = make_landmark_inputs(
        B=batch,
        N=N,
        M=HEADS,
        D=WIDTH,
        L=LANDMARKS,
        E=EXPAND * HEADS,
        dtype=dtype,
        device=device,
    )
    for x in inputs:
        x.requires_grad_()
    q, k, v = qkv = inputs[:3]
    # The paper's dense interaction mixes M heads to M, and in the dtype of the maps.
    square = [
        w[:HEADS, :HEADS].detach().to(dtype).requires_grad_() for w in inputs[5:7]
    ]
    grad = make_landmark_inputs(
        B=batch, N=N, M=HEADS, D=WIDTH, dtype=dtype, device=device, seed=1
    )[0].contiguous()
    maps = (batch, N, HEADS, dtype)
    backend = OPERATORS['landmark_attention'].choose(*inputs)

    def run(backend):
        return lambda *tensors: landmark_attention(*tensors, backend=backend)

    ours = f'landmark_attention ({backend})'
    definition = 'landmark_attention (definition)'
    return [
        Case(ours, run(None), inputs, grad, same_as=definition),
        Case(f'{ours}, no interaction', run(None), inputs[:5], grad),
        Case(definition, run('reference'), inputs, grad),
        Case(BASELINE, sdpa, qkv, grad),
        Case('dense_attention', dense_attention, qkv, grad, needs=map_bytes(*maps)),
        Case(
            'dense_attention, interaction',
            dense_attention,
            [*qkv, *square],
            grad,
            needs=map_bytes(*maps, interaction=True),
        ),
    ]
