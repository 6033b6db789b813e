"""The GPU report: what it writes on a CPU, and that failures do not stop it."""

import os
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip('triton')

from tools.benchmark import check, gpu_report, operators
from tools.benchmark.gpu_report import Outcome, Part
from tools.benchmark.measure import read_csv
from tools.benchmark.real_shapes import small_calls


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


SCRIPT = 'tools.benchmark.gpu_report --minutes'  # which ends with status 2


@pytest.mark.parametrize('critical, status', [(True, 1), (False, 0)])
def test_a_failure_is_listed_and_the_rest_goes_on(run, monkeypatch, critical, status):
    call, out = run
    (out / 'slow_command.py').write_text('import time\ntime.sleep(60)')
    path = os.pathsep.join(filter(None, (str(out), os.environ.get('PYTHONPATH'))))
    monkeypatch.setenv('PYTHONPATH', path)
    part = Part(999, {'bad': SCRIPT, 'good': 'json.tool --help'}, '', critical=critical)
    slow = Part(1, {'slow': 'slow_command'}, '')
    monkeypatch.setattr(gpu_report, 'PARTS', {'slow': slow, 'fake': part})
    assert call('--parts', 'slow', 'fake') == status
    text = (out / 'report.md').read_text()
    assert f'wrong results: {status}' in text and 'expected one argument' in text
    assert '- bad: ended with status 2' in text and '- slow: stopped after' in text
    assert '- good' not in text and '## good' in text


def test_wrong_rows_make_the_report_fail(tmp_path):
    text = 'operator,passed\nmasked_attention,{}\n'
    for passed, wrong in (('True', 0), ('', 0), ('False', 1)):
        (tmp_path / 'a_check.csv').write_text(text.format(passed))
        assert len(gpu_report.wrong_results([], tmp_path)) == wrong
    assert Outcome('speed', 'x', 'ended with status 1', 'AssertionError: out').is_wrong
    assert not Outcome('speed', 'x', 'ended with status 1', 'RuntimeError').is_wrong


@pytest.mark.parametrize('name', gpu_report.SPEED)
def test_operators_take_the_shapes_of_the_report(name):
    sides, batches = gpu_report.SPEED[name]
    assert len(sides.split()) == len(batches.split())
    module = operators.load(name)
    assert 'x' not in sides or module.RECTANGLES
    assert module.cases((3, 4), 1, 'cpu', torch.float32)[0].run('forward')


def test_runs_that_differ_and_wrong_results_are_found(monkeypatch):
    results = [(torch.zeros(2), [None, torch.zeros(2)]) for _ in range(3)]
    results[2][1][1][1] = 1e-9
    call = SimpleNamespace(run_on=lambda backend: None)
    monkeypatch.setattr(check, 'run_with_grads', lambda *_: results.pop())
    assert not check.runs_equal(call, [])
    monkeypatch.undo()
    call = small_calls('masked_attention')[0]
    wrong = SimpleNamespace(
        **vars(call) | dict(run_on=lambda name: shifted(call, name))
    )
    row = check.compare(wrong, 'any', torch.float32, 'cpu')
    assert row['passed'] is False and row['error'] > 1 and row['of'] == 'out'


def shifted(call, name: str):
    """Return a call's definition, with another output by another backend."""
    definition = call.run_on('reference')
    return lambda *x: definition(*x) + (0.01 if name == 'any' else 0)
