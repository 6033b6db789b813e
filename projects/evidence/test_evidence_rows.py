"""projects/evidence/rows.py: runs as rows of a csv file."""

import pytest

from projects.evidence.rows import (
    COLUMNS,
    DamagedTable,
    Row,
    add_row,
    locked,
    read_rows,
)


def make_row(seed: int = 0, accuracy: float = 80.5, **metrics: float) -> Row:
    facts = {name: kind(1) for name, kind in COLUMNS.items()}
    return Row(facts | dict(hash='abc', seed=seed), dict(accuracy=accuracy) | metrics)


def test_rows_are_read_as_written_and_replaced_by_their_key(tmp_path):
    path = tmp_path / 'folder' / 'a.csv'
    assert read_rows(path) == {}
    first, second = make_row(), make_row(seed=1, loss=0.25)
    for row in (first, second):
        add_row(path, row)
    assert read_rows(path) == {('abc', 0): first, ('abc', 1): second}
    again = make_row(accuracy=90.0)
    add_row(path, again)
    assert read_rows(path) == {('abc', 0): again, ('abc', 1): second}
    assert [each.name for each in path.parent.iterdir()] == ['a.csv']


@pytest.mark.parametrize(
    'damage, message',
    [
        (lambda text: text.replace('seed,', 'sead,'), r"line 2: KeyError\('seed'\)"),
        (lambda text: text.replace('80.5', '8o.5'), "line 2: .* float: '8o"),
        (lambda text: text.replace('1,1,abc', '1,0,abc'), 'is there twice'),
        (lambda text: text.rstrip('\n') + ',7\n', 'line 3: '),
    ],
    ids=['header', 'metric', 'twice', 'long'],
)
def test_a_damaged_table_is_refused_and_kept(tmp_path, damage, message):
    path = tmp_path / 'a.csv'
    for seed in (0, 1):
        add_row(path, make_row(seed=seed))
    path.write_text(damage(path.read_text()))
    damaged = path.read_text()
    with pytest.raises(DamagedTable, match=message) as caught:
        add_row(path, make_row(seed=2))
    assert str(path) in str(caught.value)
    assert path.read_text() == damaged


def test_a_lock_is_held_by_one(tmp_path):
    with locked(tmp_path / 'a', wait=False) as first:
        with locked(tmp_path / 'a', wait=False) as second:
            assert first and not second
    with locked(tmp_path / 'a', wait=False) as third:
        assert third
