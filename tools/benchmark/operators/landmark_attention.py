"""Landmark attention beside dense attention and SDPA, as the paper's Figure 3.

Stage 3 of iViT-T: 320 channels in 10 heads, 49 landmarks. q, k and v are views of one
packed tensor, as a model's projection leaves them, and every method takes and returns
(B, N, M, D). The figure is of "Interactive Multi-Head Self-Attention with Linear
Complexity", https://arxiv.org/abs/2402.17507; it times a block of ViT-S with its
projections, this the attention alone.
"""

import torch.nn.functional as F
from torch import Tensor

from mmattn.ops import landmark_attention
from mmattn.ops.backend import select_backend
from mmattn.ops.landmark_attention.interface import BACKENDS, OPERATOR
from mmattn.ops.testing import make_landmark_inputs

from .case import PASSES, Case

SIDES = (14, 28, 42, 56, 84, 128)
BASELINE = 'scaled_dot_product_attention'
HEADS, WIDTH, LANDMARKS = 10, 32, 49
EXPAND = 2  # mixed heads of a head: the default of `InteractiveAttention`
# N x N maps that dense attention holds at once, without and with interaction.
MAPS = {'forward': (2, 2), 'forward+backward': (3, 4)}


def mix(w: Tensor, maps: Tensor) -> Tensor:
    """(M, M) times (B, M, N, N) over the heads, without a copy of the maps."""
    return w.expand(len(maps), -1, -1).bmm(maps.flatten(2)).view_as(maps)


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, w1: Tensor | None = None, w2: Tensor | None = None
) -> Tensor:
    """`w2 softmax(w1 q k^T / sqrt(D)) v` through its N x N maps (equation 5)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    attn = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, M, N, N)
    if w1 is not None:
        attn = mix(w1, attn)
    attn = attn.softmax(dim=-1)
    if w2 is not None:
        attn = mix(w2, attn)
    return (attn @ v).transpose(1, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, M, N, D)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def cases(side: int, batch: int, device: str, dtype) -> list[Case]:
    inputs = make_landmark_inputs(
        B=batch,
        N=side**2,
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
        B=batch, N=side**2, M=HEADS, D=WIDTH, dtype=dtype, device=device, seed=1
    )[0].contiguous()
    map_bytes = batch * HEADS * side**4 * dtype.itemsize
    plain, mixed = (
        {which: MAPS[which][i] * map_bytes for which in PASSES} for i in range(2)
    )
    backend = select_backend(OPERATOR, None, BACKENDS, *inputs)

    def run(backend):
        return lambda *tensors: landmark_attention(*tensors, backend=backend)

    ours = f'landmark_attention ({backend})'
    definition = 'landmark_attention (definition)'
    return [
        Case(ours, run(backend), inputs, grad, same_as=definition),
        Case(f'{ours}, no interaction', run(backend), inputs[:5], grad),
        Case(definition, run('reference'), inputs, grad),
        Case(BASELINE, sdpa, qkv, grad),
        Case('dense_attention', dense_attention, qkv, grad, needs=plain),
        Case(
            'dense_attention, interaction',
            dense_attention,
            [*qkv, *square],
            grad,
            needs=mixed,
        ),
    ]
