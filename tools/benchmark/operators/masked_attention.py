"""Masked attention beside its dense definition, full attention and an unfold form.

The shape is stage 1 of H-MaiT-T: 96 channels in 3 heads, all masked, 3 x 3. q, k and v
are views of one packed tensor, as a model's projection leaves them, and every method
takes and returns (B, N, M, D). A soft mask admits all tokens, so it is quadratic, as
are the definition and the peers without a mask. On a CPU those run up to `CPU_TOKENS`
only, since one call on larger maps takes minutes. FlexAttention has no backward there.
It computes all scores, since the tokens outside the mask take part.

The network comes from "MaiT: Leverage Attention Masks for More Efficient Image
Transformers", https://arxiv.org/abs/2207.03006, section 5.4.
"""

from dataclasses import replace
from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from . import flex
from .case import Case, Grid, ours
from .dense import sdpa

SIDES = '14 28 56 112 200x334'
BASELINE = 'scaled_dot_product_attention'
HEADS, WIDTH, KERNEL = 3, 32, 3
CPU_TOKENS = {'full': 112**2, 'soft': 56**2}


def unfold_attention(q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
    """Compute the hard mask in linear time with nine copies of k and of v.

    Weights are relative to e^0, the weight of every token, so the sum of all values
    carries those outside the mask.
    """
    B, N, M, D = q.shape

    def neighbors(x: Tensor) -> Tensor:
        """Unfold (B, N, ..) to (B, .., R * R, N), 0 outside the map."""
        maps = x.flatten(2).transpose(1, 2).unflatten(2, grid)
        taps = F.unfold(maps, KERNEL, padding=KERNEL // 2)
        return taps.view(B, *x.shape[2:], KERNEL**2, N)

    q = (q * D**-0.5).permute(0, 2, 3, 1).unsqueeze(3)  # (B, M, D, 1, N)
    scores = (q * neighbors(k)).sum(2, keepdim=True)  # (B, M, 1, R * R, N)
    # Keys outside the map are 0, and so are their scores and weights.
    shift = scores.detach().amax(3, keepdim=True).clamp(min=0)
    outside = (-shift).exp()
    weights = (scores - shift).exp() - outside
    total = weights.sum(3) + N * outside.squeeze(3)
    values = v.sum(1)[..., None] * outside.squeeze(3)  # (B, M, D, N)
    out = ((weights * neighbors(v)).sum(3) + values) / total
    return out.permute(0, 3, 1, 2)


def cases(grid: Grid, batch: int, device: str, dtype: torch.dtype) -> list[Case]:
    N = prod(grid)
    full = dict(pairs=batch * HEADS * N**2)

    def methods(is_soft: bool) -> list[Case]:
        shape = dict(grid=grid, num_special=0, B=batch, M=HEADS, D=WIDTH)
        shape |= dict(kernel_size=KERNEL, alpha=is_soft, dtype=dtype, device=device)
        *backends, definition = ours('masked_attention', **shape)
        by_flex = replace(
            definition,
            method=flex.METHOD,
            call=flex.masked(grid, KERNEL),
            same_as=definition.method,
            **flex.options(device),
        )
        definition = replace(definition, holds_maps=True)
        return [*backends, *(replace(x, **full) for x in (definition, by_flex))]

    def is_run(kind: str) -> bool:
        return device != 'cpu' or N <= CPU_TOKENS[kind]

    *backends, definition, by_flex = methods(is_soft=False)
    unfold = partial(unfold_attention, grid=grid)
    common = dict(tensors=definition.tensors, grad=definition.grad)
    made = [*backends, Case('unfold', unfold, same_as=definition.method, **common)]
    if is_run('full'):
        plain = Case(BASELINE, sdpa, **common, **full)
        made += [definition, plain, by_flex]
    if is_run('soft'):
        for case in methods(is_soft=True):
            same_as = case.same_as and f'{case.same_as}, soft'
            changes = dict(method=f'{case.method}, soft', same_as=same_as, **full)
            made.append(replace(case, **changes))
    return made
