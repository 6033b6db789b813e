"""Shapes and settings for the tests of deformable attention."""

import pytest

from mmattn.ops import deformable_attention
from mmattn.ops.deformable_attention import torch_impl
from tools.benchmark.inputs import make_deformable_inputs

GRID = (7, 5)
NAMES = 'q k v positions table'.split()
SHAPES = {
    'table for the grid': dict(),
    'table for a smaller grid': dict(grid=(9, 12), table_size=(7, 9)),
    'table for a larger grid': dict(grid=(4, 3), table_size=(30, 21)),
    'table of one row': dict(table_size=(1, 9)),
    'stride 1, as many keys as queries': dict(K=35),
    'groups are heads': dict(G=4),
    'one group': dict(G=1, M=3),
    'one query': dict(grid=(1, 1)),
    'one query, another table': dict(grid=(1, 1), table_size=(3, 5)),
    'queries 63 in a row': dict(grid=(1, 63)),
    'queries 63 in a column': dict(grid=(63, 1), table_size=(7, 7)),
    'one key': dict(grid=(3, 4), K=1),
    'one of everything': dict(grid=(1, 1), K=1, B=1, M=1, D=1, G=1),
}

every_shape = pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES.keys())
both_grids = pytest.mark.parametrize(
    'align_corners', [True, False], ids=['DAT++', 'DAT']
)


@pytest.fixture(autouse=True)
def products(monkeypatch):
    """Backend 'torch' is products for small inputs too."""
    monkeypatch.setattr(torch_impl, 'REFERENCE_PAIRS', 0)


@pytest.fixture
def blocks(monkeypatch):
    """Some rows and keys of one plane at a time."""
    monkeypatch.setattr(torch_impl, 'BLOCK_ELEMENTS', 60)
    monkeypatch.setattr(torch_impl, 'BLOCK_QUERIES', 15)


def setup(name='torch', *, align_corners=True, **shape):
    """Return the operator as a function of its five tensors, and the tensors."""
    grid = shape.get('grid', GRID)

    def function(q, k, v, positions, table, backend=name):
        return deformable_attention(
            q,
            k,
            v,
            grid,
            positions,
            table,
            align_corners=align_corners,
            backend=backend,
        )

    return function, make_deformable_inputs(**{'grid': GRID} | shape)
