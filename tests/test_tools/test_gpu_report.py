"""The GPU report: what it writes on a CPU, and that failures do not stop it."""

import pytest

pytest.importorskip('triton')

from tools.benchmark import gpu_report
from tools.benchmark.measure import read_csv


@pytest.fixture
def run(tmp_path):
    """Return a call of the dry run with its exit status, and its folder."""

    def call(*options: str) -> int:
        return gpu_report.main(['--dry-run', '--out', str(tmp_path), *options])

    return call, tmp_path


def test_dry_run(run):
    call, out = run
    assert call('--parts', 'correctness', '--tasks', 'neighborhood_attention') == 0
    rows = read_csv(out / 'neighborhood_attention_check.csv')
    assert {row['backend'] for row in rows} == {'triton'}
    for row in rows:
        assert row['passed'] == 'True' and 0 <= float(row['error']) <= 1
        assert row['equal_runs'] == 'True'
    assert '| neighborhood_attention | triton |' in (out / 'report.md').read_text()
