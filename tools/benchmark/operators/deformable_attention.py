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

from mmattn.ops import deformable_attention
from tools.benchmark.inputs import make_deformable_inputs

from . import flex
from .case import Case, Side, grid_of, leaves, ours, random_grad
from .dense import sdpa

OPERATOR = 'deformable_attention'
SIDES = (25, 42), (50, 84), (100, 167)
RECTANGLES = True
BASELINE = f'{OPERATOR} (definition)'
WIDTH = 32
HEIGHTS = {224: (7, 14, 28, 56), 800: (25, 50, 100, 200)}  # of stages 4 to 1
# Heads, groups, stride of the keys and side of the design table's grid.
STAGES = (16, 8, 1, 7), (8, 4, 2, 14), (4, 2, 4, 28), (2, 1, 8, 56)


def stage_of(grid: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the entry of `STAGES`, or for other maps the entry of the next larger."""
    heights = HEIGHTS[224] if grid[0] in HEIGHTS[224] else HEIGHTS[800]
    return STAGES[sum(grid[0] > height for height in heights[:-1])]


def cases(side: Side, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    grid = grid_of(side)
    heads, groups, stride, design = stage_of(grid)
    keys = prod(-(-length // stride) for length in grid)
    grad = random_grad((batch, prod(grid), heads, WIDTH), device, dtype)
    common = dict(pairs=batch * heads * prod(grid) * keys)

    def call(q, k, v, positions, table, backend):
        return deformable_attention(q, k, v, grid, positions, table, backend=backend)

    made = []
    own, design = tuple(2 * length - 1 for length in grid), (2 * design - 1,) * 2
    for size in dict.fromkeys((own, design)):
        label = '' if size == own else ', design table'
        sizes = dict(grid=grid, K=keys, B=batch, M=heads, D=WIDTH, G=groups)
        options = dict(table_size=size, dtype=dtype, device=device)
        q, *others = make_deformable_inputs(**sizes, **options)
        tensors = leaves([q.contiguous(), *others])  # what a projection makes
        *backends, definition = ours(OPERATOR, call, tensors, grad)
        by_flex = Case(flex.METHOD, flex.deformable(grid), tensors, grad)
        for case, changes in (
            *((case, common) for case in backends),
            (definition, common | dict(holds_maps=True)),
            (by_flex, common | flex.options(device)),
        ):
            if case is not definition:
                changes = changes | dict(same_as=definition.method + label)
            made.append(replace(case, method=case.method + label, **changes))
    plain = Case('scaled_dot_product_attention', sdpa, tensors[:3], grad, **common)
    return [*made, plain]
