"""Biases from tables of relative positions, number by number."""

from itertools import product

import pytest
import torch

from mmattn.models.layers import offset_tables
from mmattn.models.layers.offset_tables import central_bias, spread_table


def entry(table, y, x):
    """Return the numbers of an offset, which the table's border clips."""
    middle = (side // 2 for side in table.shape[1:])
    y, x = (max(-m, min(m, i)) + m for i, m in zip((y, x), middle, strict=True))
    return table[:, y, x]


@pytest.mark.parametrize('sides', [(7, 9), (3, 5)])
@pytest.mark.parametrize('most', [12, 11])
def test_spread_table(monkeypatch, sides, most):
    monkeypatch.setattr(offset_tables, 'MAX_PIXELS', most)
    grid = 3, 4
    table = torch.arange(2.0 * sides[0] * sides[1]).view(2, *sides)
    N = grid[0] * grid[1]
    places = list(product(*map(range, grid)))
    pairs = [entry(table, q[0] - k[0], q[1] - k[1]) for q in places for k in places]
    expected = torch.stack(pairs, 1).view(2, N, N)
    assert torch.equal(spread_table(table, grid), expected)
    rows = slice(1, 2)
    expected = expected[:, grid[1] : 2 * grid[1]]
    assert torch.equal(spread_table(table, grid, rows), expected)


@pytest.mark.parametrize('sides', [(7, 9), (3, 5)])
def test_central_bias(sides):
    table = torch.arange(2.0 * sides[0] * sides[1]).view(2, *sides)
    offsets = product(range(-3, 4), repeat=2)  # from query to key
    expected = torch.stack([entry(table, -y, -x) for y, x in offsets], 1)
    assert torch.equal(central_bias(table, 7), expected.view(2, 7, 7))
