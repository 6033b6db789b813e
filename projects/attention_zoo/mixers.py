"""Time and memory of the mixers in ViT-T's width beside mmattn's.

    python -m tools.benchmark.op projects/attention_zoo/mixers.py \\
        --seconds 0.1 --csv projects/attention_zoo/mixers_cpu.csv
    python -m tools.benchmark.plot projects/attention_zoo/mixers_cpu.csv

A method is a whole layer, with the projections of 192 channels in 3 heads, in
evaluation mode. All have their default settings. The mixers of this folder are written
in plain PyTorch, and the layers of mmattn run its operators.
"""

import functools

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mmattn.models.backbones.vit import SelfAttention
from mmattn.models.layers import (
    InteractiveAttention,
    NeighborhoodAttention,
    StructureAwareAttention,
)
from projects.attention_zoo.combiner import CombinerAttention
from projects.attention_zoo.eva import EVAAttention
from projects.attention_zoo.lara import LARAAttention
from projects.attention_zoo.local import LocalAttention
from projects.attention_zoo.long_short import LongShortAttention
from projects.attention_zoo.nystromformer import NystromAttention
from projects.attention_zoo.performer import PerformerAttention
from projects.attention_zoo.scatterbrain import ScatterbrainAttention
from tools.benchmark.operators import Case, Grid

SIDES = '14 28 42 56'  # the tokens of the paper's tables
BASELINE = 'softmax (SDPA)'
CHANNELS, HEADS = 192, 3
LISA_HEADS = 12  # as in LiSANet-I


def call(layer: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
    """Call a layer with other parameters, in the order of its own."""
    names = [name for name, _ in layer.named_parameters()]
    return functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))


def layers(grid: Grid) -> dict[str, nn.Module]:
    """Return the layers by name, mmattn's first."""
    return {
        'mmattn InteractiveAttention': InteractiveAttention(CHANNELS, HEADS),
        'mmattn StructureAwareAttention': StructureAwareAttention(
            CHANNELS, LISA_HEADS, grid
        ),
        'mmattn NeighborhoodAttention': NeighborhoodAttention(CHANNELS, HEADS),
        BASELINE: SelfAttention(CHANNELS, HEADS),
        'Performer': PerformerAttention(CHANNELS, HEADS),
        'Nystromformer': NystromAttention(CHANNELS, HEADS),
        'LARA': LARAAttention(CHANNELS, HEADS),
        'EVA': EVAAttention(CHANNELS, HEADS),
        'Local': LocalAttention(CHANNELS, HEADS),
        'Scatterbrain': ScatterbrainAttention(CHANNELS, HEADS),
        'Combiner': CombinerAttention(CHANNELS, HEADS),
        'Long-Short': LongShortAttention(CHANNELS, HEADS),
    }


def cases(grid: Grid, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    torch.manual_seed(0)
    x, grad = (torch.randn(batch, *grid, CHANNELS).to(device, dtype) for _ in range(2))
    made = []
    for method, layer in layers(grid).items():
        layer.eval().to(device, dtype)
        tensors = [x.requires_grad_(), *layer.parameters()]
        made.append(Case(method, functools.partial(call, layer), tensors, grad))
    return made
