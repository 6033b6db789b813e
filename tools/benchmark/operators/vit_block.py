"""A block of ViT-S with the four attentions of iViT's Figure 3.

384 channels, 6 heads, an MLP of ratio 4, and projections. The sides are for images
of 224 to 896 pixels. The figure is of "Interactive Multi-Head Self-Attention with
Linear Complexity", https://arxiv.org/abs/2402.17507; it shows time and memory.
Decomposition and interaction follow equations 5 to 7; `imhsa` has our defaults.
`flops_m` are millions of multiply-accumulates of one image's forward pass.
"""

import functools

import torch
from torch import nn

from mmattn.analysis import count
from mmattn.models import ViT

from .blocks import MatmulAttention, OnMaps, block_cases
from .case import Case

SIDES = (14, 28, 42, 56)
BASELINE = 'mhsa (matmul)'
SDPA = 'mhsa (SDPA)'
CHANNELS, HEADS = 384, 6
PRINTED = dict(local_kernel=None, gate=False)  # of equations 6 and 7
METHODS = {
    SDPA: dict(attention='mhsa'),
    BASELINE: dict(attention='mhsa'),
    'mhsa, interaction': dict(attention='mhsa_interaction', interact_expand=1),
    'mhsa, decomposition': dict(interact_expand=None, **PRINTED),
    'mhsa, decomposition and interaction': dict(interact_expand=1, **PRINTED),
    'imhsa': dict(),
}


def make_blocks() -> dict[str, nn.Module]:
    arch = dict(embed_dims=CHANNELS, depth=1, num_heads=HEADS)
    blocks = {name: ViT(arch, **kind).blocks[0] for name, kind in METHODS.items()}
    blocks[BASELINE].attn = MatmulAttention(CHANNELS, HEADS)
    return {name: block.eval() for name, block in blocks.items()}


@functools.cache
def columns(side: int) -> dict[str, dict[str, float]]:
    """Return the further columns of each method."""
    flops = {
        method: count(OnMaps(block, CHANNELS).to('meta'), (side, side)).flops
        for method, block in make_blocks().items()
    }
    return {method: {'flops_m': round(n / 1e6, 2)} for method, n in flops.items()}


def cases(side: int, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    return block_cases(
        make_blocks(),
        (batch, side, side, CHANNELS),
        device,
        dtype,
        columns(side),
        same_as={SDPA: BASELINE},
    )
