"""The benchmark of models, on a small one."""

import pytest
import torch

from tools.benchmark import model
from tools.benchmark.measure import read_csv

NAME = 'resnet10t'


@pytest.fixture
def compiled(monkeypatch):
    """List the modules that are compiled, without compiling them."""
    modules = []
    monkeypatch.setattr(torch, 'compile', lambda m: modules.append(m) or m)
    return modules


@pytest.mark.slow
@pytest.mark.parametrize('option, count', [([], 0), (['only'], 1), (['beside'], 1)])
def test_compile(option, count, compiled, tmp_path):
    path = tmp_path / 'models.csv'
    options = ['--models', NAME, '--baseline', NAME, '--clock', 'user', '--maps']
    options += ['--compile', *option] if option else []
    assert model.main([*options, '--quick', '--csv', str(path)]) == 0
    assert len(compiled) == count
    rows = read_csv(path)
    assert [row['pass'] for row in rows] == ['inference', 'training step']
    for row in rows:
        assert row['speedup'] == '1.0' and row['clock'] == 'user'
        assert row['compiled'] == str(option[0] if option else False)
        assert ('compiled_speedup' in row) == (option == ['beside'])
        assert float(row.get('compiled_speedup', 1)) > 0
