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

GRIDS = [(14, 14), (21, 9), (7, 7), (3, 5), (1, 1), (23, 50)]


class Pool(nn.Module):
    def forward(self, x):
        return adaptive_avg_pool(x, (7, 5))


def noise(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize('grid', [*GRIDS, (14, 35)], ids=str)
def test_pool_of_gpus(grid):
    x, grad = noise(2, *grid, 3).requires_grad_(), noise(2, 7, 5, 3)
    pooled, expected = pool_in_order(x, (7, 5)), adaptive_avg_pool(x, (7, 5))
    assert_close(pooled, expected)
    assert_close(*(torch.autograd.grad(out, x, grad) for out in (pooled, expected)))


@pytest.mark.parametrize('grid', GRIDS, ids=str)
def test_decomposition(grid):
    x = noise(2, 5, *grid)
    expected = F.adaptive_avg_pool2d(x, (7, 5))
    assert_close(adaptive_avg_pool2d_decomposition(x, (7, 5)), expected)


class PyTorchPools(nn.Module):
    def forward(self, x):
        return F.adaptive_avg_pool2d(x, (7, 5)), F.adaptive_avg_pool2d(x, 1)


def test_pools_of_pytorch_are_replaced():
    """PyTorch's decomposition keeps the indices of the example's size."""
    sides = dict.fromkeys((2, 3), torch.export.Dim.DYNAMIC)
    program = torch.export.export(
        PyTorchPools(), (noise(2, 3, 20, 31),), dynamic_shapes=(sides,)
    ).run_decompositions(ADAPTIVE_POOL)
    targets = [str(node.target) for node in program.graph.nodes]
    assert not [target for target in targets if 'pool' in target]
    run = program.module()
    for grid in GRIDS[:4]:
        x = noise(2, 3, *grid)
        assert_close(run(x), PyTorchPools()(x))


def test_exported_pool_of_any_size():
    sides = dict.fromkeys((1, 2), torch.export.Dim.DYNAMIC)
    program = torch.export.export(
        Pool(), (noise(2, 20, 31, 3),), dynamic_shapes=(sides,)
    ).module()
    for grid in GRIDS[:4]:
        x = noise(2, *grid, 3)
        expected = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), (7, 5))
        assert_close(program(x), expected.permute(0, 2, 3, 1))
        assert_close(Pool()(x), expected.permute(0, 2, 3, 1))
