"""The GPU report: what it writes on a CPU, and that failures do not stop it."""

import os
from dataclasses import replace
from pathlib import Path

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


@pytest.fixture
def run_faulty(run, monkeypatch):
    """Return a call of the dry run in which one of three comparisons has a fault."""
    call, out = run
    monkeypatch.setenv('PYTHONPATH', str(Path(__file__).parent), prepend=os.pathsep)

    def with_fault(fault: str, *options: str) -> tuple[int, str, list[dict]]:
        words = f'faulty_check {fault} ms_deform_attn neighborhood_attention'
        part = replace(gpu_report.PARTS['correctness'], commands={'x_check': words})
        monkeypatch.setitem(gpu_report.PARTS, 'correctness', part)
        status = call('--parts', 'correctness', *options)
        return status, (out / 'report.md').read_text(), read_csv(out / 'x_check.csv')

    return with_fault


@pytest.mark.parametrize(
    'fault, note',
    [
        ('resources', 'OutOfResources: out of resource: shared memory'),
        ('illegal', 'RuntimeError: CUDA error: an illegal memory access'),
    ],
)
def test_an_error_is_the_row_of_its_call_alone(run_faulty, fault, note):
    status, text, rows = run_faulty(fault)
    assert status == 1 and '**Verdict: wrong**' in text and 'undecided' not in text
    assert [row['passed'] for row in rows] == ['True', 'False', 'True']
    assert rows[1]['note'].startswith(note) and rows[2]['error'] == '0.5'
    assert 'wrong results: 2' in text  # the call, and the command's exit status


@pytest.mark.slow
def test_a_hang_is_undecided(run_faulty):
    status, text, rows = run_faulty('hang', '--minutes', '0.7')
    assert status == 2 and '**Verdict: undecided**' in text and len(rows) == 1
    assert (
        'x_check: compared 1 of 3, in progress: ms_deform_attn, triton, float32, '
        'levels 1' in text
    )
