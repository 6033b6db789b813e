"""Neighborhood attention in exported graphs: windows at every border, and any size."""

import pytest
import torch
from export_checks import decomposed
from torch import nn

from mmattn.ops import neighborhood_attention
from mmattn.ops.neighborhood_attention.decomposition import (
    neighborhood_attention_decomposition,
)
from tools.benchmark.inputs import Draw
from tools.benchmark.tolerances import assert_close

GRIDS = (7, 7), (8, 13), (14, 15), (30, 17)


class Call(nn.Module):
    """Attend with q, k and v as one map, shape (B, H, W, 3, M, D)."""

    def __init__(self, K=7):
        super().__init__()
        self.rpb = Draw()(3, 2 * K - 1, 2 * K - 1)

    def forward(self, x, backend=None):
        return neighborhood_attention(*x.unbind(3), self.rpb, backend=backend)


@pytest.mark.parametrize('K', (3, 7))
@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_decomposition(grid, K):
    call, x = Call(K), Draw(seed=1)(2, *grid, 3, 3, 8)
    out = neighborhood_attention_decomposition(*x.unbind(3), call.rpb)
    assert_close('out', call(x, backend='reference'), out)


@pytest.mark.slow
def test_decomposition_for_sizes_that_change():
    call, draw = Call(), Draw(seed=1)
    sizes = [dict.fromkeys((0, 1, 2), torch.export.Dim.DYNAMIC)]
    # The example has more pixels than the stencil's kernels serve, the others fewer.
    program = decomposed(call, (draw(2, 47, 53, 3, 3, 8),), sizes)
    for grid in ((8, 13), (14, 15), (50, 60)):
        x = draw(3, *grid, 3, 3, 8)
        assert_close(f'{grid}', call(x, backend='reference'), program(x))
