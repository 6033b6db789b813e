"""Landmark attention beside dense attention and SDPA, as the paper's Figure 3.

Stage 3 of iViT-T: 320 channels in 10 heads, 49 landmarks. q, k and v are views of one
packed tensor, as a model's projection leaves them, and every method takes and returns
(B, N, M, D). The figure is of "Interactive Multi-Head Self-Attention with Linear
Complexity", https://arxiv.org/abs/2402.17507, and of a block; this is the attention.
"""

from dataclasses import replace
from math import prod

from mmattn.ops import landmark_attention
from tools.benchmark.inputs import make_landmark_inputs

from .case import Case, Side, grid_of, leaves, ours, random_grad
from .dense import dense_attention, sdpa

OPERATOR = 'landmark_attention'
SIDES = (14, 28, 42, 56, 84, 128)
RECTANGLES = True
BASELINE = 'scaled_dot_product_attention'
HEADS, WIDTH, LANDMARKS = 10, 32, 49
EXPAND = 2  # mixed heads of a head: the default of `InteractiveAttention`


def cases(side: Side, batch: int, device: str, dtype) -> list[Case]:
    N = prod(grid_of(side))
    sizes = dict(B=batch, N=N, M=HEADS, D=WIDTH, L=LANDMARKS, E=EXPAND * HEADS)
    inputs = leaves(make_landmark_inputs(**sizes, dtype=dtype, device=device))
    qkv, mixing = inputs[:3], inputs[5:7]
    # The paper's dense interaction mixes M heads to M, and in the dtype of the maps.
    square = leaves(w[:HEADS, :HEADS].detach().to(dtype) for w in mixing)
    grad = random_grad(qkv[0].shape, device, dtype)
    *backends, definition = ours(OPERATOR, landmark_attention, inputs, grad)
    plain = dict(tensors=inputs[:5], same_as=None)
    maps = dict(pairs=batch * HEADS * N**2, holds_maps=True)
    mixed = [*qkv, *square], grad
    return [
        *backends,
        *(replace(c, method=f'{c.method}, no interaction', **plain) for c in backends),
        definition,
        Case(BASELINE, sdpa, qkv, grad),
        Case('dense_attention', dense_attention, qkv, grad, **maps),
        Case('dense_attention, interaction', dense_attention, *mixed, **maps),
    ]
