"""Adaptive pooling by products equals PyTorch's, also in graphs for all sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from mmattn.export.decomposition_table import ADAPTIVE_POOL
from mmattn.ops.common.adaptive_pool import (
    adaptive_avg_pool,
    adaptive_avg_pool2d_decomposition,
    pool_in_order,
)

GRIDS = [(14, 14), (21, 9), (7, 7), (3, 5), (1, 1), (23, 50), (14, 35)]
POOLS = {
    'in order': pool_in_order,
    'decomposed': lambda x, size: adaptive_avg_pool2d_decomposition(
        x.permute(0, 3, 1, 2), size
    ).permute(0, 2, 3, 1),
}


class Pool(nn.Module):
    def forward(self, x):
        return adaptive_avg_pool(x.permute(0, 2, 3, 1), (7, 5)).permute(0, 3, 1, 2)


class PyTorchPools(nn.Module):
    def forward(self, x):
        return F.adaptive_avg_pool2d(x, (7, 5)), F.adaptive_avg_pool2d(x, 1)


def noise(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize('pool', POOLS.values(), ids=POOLS)
@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_values_and_gradients(grid, pool):
    x, grad = noise(2, *grid, 3).requires_grad_(), noise(2, 7, 5, 3)
    expected = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), (7, 5)).permute(0, 2, 3, 1)
    pooled = pool(x, (7, 5))
    assert_close(pooled, expected)
    assert_close(*(torch.autograd.grad(out, x, grad) for out in (pooled, expected)))


@pytest.mark.parametrize('module', [Pool, PyTorchPools])
def test_exported_pools_run_at_any_size(module):
    """PyTorch's decomposition keeps the indices of the example's size."""
    sides = dict.fromkeys((2, 3), torch.export.Dim.DYNAMIC)
    program = torch.export.export(
        module(), (noise(2, 3, 20, 31),), dynamic_shapes=(sides,)
    ).run_decompositions(ADAPTIVE_POOL)
    assert not [node for node in program.graph.nodes if 'pool' in str(node.target)]
    run = program.module()
    for grid in GRIDS[:4]:
        x = noise(2, 3, *grid)
        assert_close(run(x), module()(x))
