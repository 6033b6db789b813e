"""The GPU report on a CPU, failures inside it, and the stored counts of kernels."""

import os
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip('triton')

from tools.benchmark import gpu_report
from tools.benchmark.measure import read_csv
from tools.benchmark.real_shapes import real_calls
from tools.gpu import report


@pytest.fixture
def run(tmp_path):
    """Return a call of the dry run with its exit status, and its folder."""

    def call(*options: str) -> int:
        return gpu_report.main(['--dry-run', '--out', str(tmp_path), *options])

    return call, tmp_path


@pytest.mark.slow
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


@pytest.mark.slow
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


COUNTED = [  # operator, words of the shape and capability
    ('deformable_attention', 'grid (7, 7)', 90),
    ('landmark_attention', 'B 1, N 67, L 300, M 10, D 32, E None', 80),
    ('masked_attention', 'num_special 1, B 32, M 3, D 64, mask zero', 80),
    ('ms_deform_attn', 'M 12, D 64, P 4, form locations, deterministic', 90),
    ('neighborhood_attention', 'grid (14, 14)', 90),
    ('structure_aware_attention', 'grid (7, 7)', 80),
]


@pytest.mark.skipif(
    not version('triton').startswith(f'{report.TRITON}.'),
    reason='the stored counts are of one version',
)
@pytest.mark.parametrize(
    'operator, shape, capability',
    [
        pytest.param(*row, marks=pytest.mark.slow if row[0] != 'ms_deform_attn' else ())
        for row in COUNTED
    ],
    ids=str,
)
def test_stored_counts_are_of_the_present_kernels(operator, shape, capability):
    """After a change of a kernel, `python -m tools.gpu.report --write` counts anew."""
    call = next(c for c in real_calls(operator) if shape in str(c))
    rows = read_csv(report.path_of(capability))
    stored = [row for row in rows if row['shape'] == str(call)]
    assert report.rows_of(call, capability) == stored
