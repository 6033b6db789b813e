"""Deformable attention beside its eager definition and attention without a bias.

The cases are the stages of DAT++-T, with the table made for the grid ("own table") and
with that of an image of 224 ("design table"), which a detector has. A side is the
height and width of a stage's map; `HEIGHTS` lists those of images of 224 and 800. The
definition samples the table with `grid_sample`, which needs two numbers for each pair
of a query and a key, and autograd keeps them.

The networks are those of "DAT++: Spatially Dynamic Vision Transformer with Deformable
Attention", https://arxiv.org/abs/2309.01430, table 2.
"""

from math import prod

import torch

from mmattn.ops import deformable_attention
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_deformable_inputs

from . import flex
from .case import Case, Side, grid_of
from .dense import sdpa

OPERATOR = 'deformable_attention'
SIDES = (25, 42), (50, 84), (100, 167)
RECTANGLES = True
BASELINE = f'{OPERATOR} (definition)'
WIDTH = 32
HEIGHTS = {224: (7, 14, 28, 56), 800: (25, 50, 100, 200)}  # of stages 4 to 1
# Heads, groups, stride of the keys and side of the design table's grid.
STAGES = (16, 8, 1, 7), (8, 4, 2, 14), (4, 2, 4, 28), (2, 1, 8, 56)
# Numbers of maps of all pairs, and of pairs of displacements for each group, held at
# once.
MAPS = {'forward': (3, 2), 'forward+backward': (4, 3)}


def stage_of(grid: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the entry of `STAGES`, or for other maps that of the next larger."""
    heights = HEIGHTS[224] if grid[0] in HEIGHTS[224] else HEIGHTS[800]
    return STAGES[sum(grid[0] > height for height in heights[:-1])]


def cases(side: Side, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    grid = grid_of(side)
    heads, groups, stride, design = stage_of(grid)
    keys = prod(-(-length // stride) for length in grid)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(batch, prod(grid), heads, WIDTH, generator=generator)
    grad = grad.to(device, dtype)
    pairs = batch * prod(grid) * keys
    float_bytes = max(4, dtype.itemsize)
    needs = {
        which: pairs * float_bytes * (heads * maps + 2 * groups * displacements)
        for which, (maps, displacements) in MAPS.items()
    }
    exponentials = {
        'forward': heads * pairs,
        'forward+backward': 2 * heads * pairs,
    }

    def run(backend):
        return lambda q, k, v, positions, table: deformable_attention(
            q, k, v, grid, positions, table, backend=backend
        )

    made = []
    own = tuple(2 * length - 1 for length in grid)
    tables = {'': own}
    if own != (2 * design - 1,) * 2:
        tables[', design table'] = (2 * design - 1,) * 2
    for label, table_size in tables.items():
        tensors = make_deformable_inputs(
            grid=grid,
            K=keys,
            B=batch,
            M=heads,
            D=WIDTH,
            G=groups,
            table_size=table_size,
            dtype=dtype,
            device=device,
        )
        tensors[0] = tensors[0].contiguous()  # what a projection makes
        for x in tensors:
            x.requires_grad_()
        backend = OPERATORS[OPERATOR].choose(*tensors)
        definition = BASELINE + label
        common = dict(grad=grad, exponentials=exponentials)
        made += [
            Case(
                f'{OPERATOR} ({backend}){label}',
                run(None),
                tensors,
                same_as=definition,
                **common,
            ),
            Case(definition, run('reference'), tensors, needs=needs, **common),
            Case(
                flex.METHOD + label,
                flex.deformable(grid),
                tensors,
                same_as=definition,
                **common,
                **flex.options(device),
            ),
        ]
    plain = Case('scaled_dot_product_attention', sdpa, tensors[:3], **common)
    return [*made, plain]
