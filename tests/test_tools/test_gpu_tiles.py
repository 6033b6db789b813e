"""The search for tiles: it finds what a call uses, and leaves no trace."""

import pytest
import torch

pytest.importorskip('triton')

from mmattn.ops.triton_launch import TILE_TABLES, TileTable
from tools.benchmark.gpu_parts import tiles
from tools.benchmark.real_shapes import OPERATORS


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr('mmattn.ops.triton_launch.TILE_TABLES', {})
    return TileTable('any.TILES', {32: (8, 16, 4), 64: (4, 8, 8)})


def test_a_trial_is_undone(table):
    with pytest.raises(ZeroDivisionError), table.trial(32, (16, 16, 4)):
        assert table[32] == (16, 16, 4) and table[64] == (4, 8, 8)
        _ = 1 / 0
    assert table[32] == (8, 16, 4)


def test_used_keys_are_noted(table):
    assert not table.used
    _ = table[64]
    assert table.used == {64}


def test_neighbors():
    assert list(tiles.neighbors((8, 256, 16))) == [
        (16, 256, 16),
        (4, 256, 16),
        (8, 128, 16),
        (8, 256, 8),
    ]
    assert (1, 16, 4) not in tiles.neighbors((2, 16, 4))


def test_every_operator_with_tables_is_searched():
    names = {name.partition('.')[0] for name in TILE_TABLES} & set(OPERATORS)
    assert set(tiles.tasks(None)) >= names
    assert len(tiles.tables_of('masked_attention')) == 2 + 2 * 3


class FakeSearch(tiles.Search):
    """The fewer warps, the faster; 16 rows are wrong, 32 columns do not compile."""

    def __init__(self, table):
        self.table, self.device = table, 'cpu'
        self.call = 'call'
        self.expected = self._results()
        self.seconds = self._seconds()

    def _results(self):
        rows, columns, _ = self.table[32]
        if columns == 32:
            raise RuntimeError('out of resources')
        return [torch.ones(3) * (2.0 if rows == 16 else 1.0)]

    def _seconds(self):
        return 1e-3 * self.table[32][2]


def test_search(table):
    search = FakeSearch(table)
    rows = []
    for sizes in tiles.neighbors(table[32]):
        rows += [row for _, row in search.trial(table, 32, sizes)]
    notes = {row['tried']: row['note'] for row in rows}
    assert 'wrong' in notes['(16, 16, 4)']
    assert notes['(8, 32, 4)'] == 'RuntimeError: out of resources'
    (entry,) = tiles.advice(rows)
    assert '(8, 16, 2),  # instead of (8, 16, 4): 2.0 times' in entry
    assert table[32] == (8, 16, 4)
