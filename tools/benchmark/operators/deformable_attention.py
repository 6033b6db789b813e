"""Deformable attention beside its eager definition and attention without a bias.

The cases are the stages of DAT++-T, with the table made for the grid ("own table") and
for the grid of an image of 224 ("design table"), which a detector has. A side is the
height and width of a stage's map; `HEIGHTS` lists them for images of 224 and 800. The
definition samples the table with `grid_sample`, which needs two numbers for each pair
of a query and a key, and autograd keeps them.

The networks come from "DAT++: Spatially Dynamic Vision Transformer with Deformable
Attention", https://arxiv.org/abs/2309.01430, table 2.
"""

from dataclasses import replace
from math import prod

import torch

from . import flex
from .case import Case, Grid, leaves, ours
from .dense import sdpa

OPERATOR = 'deformable_attention'
SIDES = '25x42 50x84 100x167'
BASELINE = f'{OPERATOR} (definition)'
WIDTH = 32
HEIGHTS = {224: (7, 14, 28, 56), 800: (25, 50, 100, 200)}  # of stages 4 to 1
# Heads, groups, stride of the keys and side of the design table's grid.
STAGES = (16, 8, 1, 7), (8, 4, 2, 14), (4, 2, 4, 28), (2, 1, 8, 56)


def stage_of(grid: Grid) -> tuple[int, int, int, int]:
    """Return the entry of `STAGES`, or for other maps the entry of the next larger."""
    heights = HEIGHTS[224] if grid[0] in HEIGHTS[224] else HEIGHTS[800]
    return STAGES[sum(grid[0] > height for height in heights[:-1])]


def cases(grid: Grid, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    heads, groups, stride, design = stage_of(grid)
    keys = prod(-(-length // stride) for length in grid)
    shape = dict(grid=grid, K=keys, B=batch, M=heads, D=WIDTH, G=groups)
    shape |= dict(dtype=dtype, device=device)
    common = dict(pairs=batch * heads * prod(grid) * keys)
    made = []
    own, design = tuple(2 * length - 1 for length in grid), (2 * design - 1,) * 2
    for size in dict.fromkeys((own, design)):
        label = '' if size == own else ', design table'
        *backends, definition = ours(OPERATOR, **shape, table_size=size)
        q, *others = definition.tensors
        tensors = leaves([q.detach().contiguous(), *others])  # what a projection makes
        by_flex = Case(flex.METHOD, flex.deformable(grid), tensors, definition.grad)
        for case, changes in (
            *((case, common) for case in backends),
            (definition, common | dict(holds_maps=True)),
            (by_flex, common | flex.options(device)),
        ):
            if case is not definition:
                changes = changes | dict(same_as=definition.method + label)
            changes = changes | dict(method=case.method + label, tensors=tensors)
            made.append(replace(case, **changes))
    plain = Case(
        'scaled_dot_product_attention', sdpa, tensors[:3], definition.grad, **common
    )
    return [*made, plain]
