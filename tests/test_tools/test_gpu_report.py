"""The GPU report: what it writes on a CPU, and that failures do not stop it."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

for name in ('triton', 'matplotlib'):
    pytest.importorskip(name)

from tools.benchmark import gpu_parts, gpu_report, plot  # noqa: E402
from tools.benchmark.gpu_parts import Log, Settings, read, summary  # noqa: E402

ROOT = Path(__file__).parents[2]


def dry_run(out: Path, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*gpu_report.COMMAND, '--dry-run', '--out', out, *options],
        capture_output=True,
        text=True,
    )


def report_of(out: Path) -> dict:
    return json.loads((out / 'report.json').read_text())


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / 'part-task.jsonl', until=time.time() + 60)


def test_dry_run(tmp_path):
    parts = ('correctness', 'speed')
    done = dry_run(tmp_path, '--parts', *parts, '--tasks', 'neighborhood_attention')
    assert done.returncode == 0, done.stdout + done.stderr
    report = report_of(tmp_path)
    assert not report['errors'] and not report['wrong']
    rows = report['tables']['correctness']
    assert {row['backend'] for row in rows} == {'triton', 'tiles'}
    assert all(row['passed'] and 0 <= row['error'] <= 1 for row in rows)
    with (tmp_path / 'neighborhood_attention_gpu.csv').open(newline='') as file:
        times = list(csv.DictReader(file))
    assert {row['pass'] for row in times} == {'forward', 'forward+backward'}
    assert all(float(row['ms']) > 0 for row in times) and len(times) == 6
    assert plot.main([str(tmp_path / 'report.json')]) == 0
    assert (tmp_path / 'neighborhood_attention_gpu.png').is_file()
    assert '| neighborhood_attention | tiles |' in (tmp_path / 'report.md').read_text()


def test_failing_cases_are_listed_and_the_rest_goes_on(log):
    def fails():
        yield 'table', {'n': 1}
        raise ZeroDivisionError('by nothing')

    def lacks_memory():
        raise torch.OutOfMemoryError('4 TB')

    log.attempt('first', fails)
    log.attempt('second', lacks_memory)
    log.attempt('third', lambda: [('table', {'n': 3})])
    assert log.build('shared', lambda: 1 / 0) is None
    kinds = [(line['kind'], line.get('case')) for line in read(log.path)]
    assert kinds == [
        ('begin', 'first'),
        ('row', None),
        ('error', 'first'),
        ('begin', 'second'),
        ('left out', 'second'),
        ('begin', 'third'),
        ('row', None),
        ('error', 'shared'),
    ]
    assert 'ZeroDivisionError: by nothing' in read(log.path)[2]['message']
    assert 'in fails' in read(log.path)[2]['traceback']


def test_cases_after_the_time_and_cases_of_an_earlier_process(tmp_path):
    late = Log(tmp_path / 'late', until=time.time() - 1)
    late.attempt('any', lambda: pytest.fail('it ran'))
    assert read(late.path)[0]['kind'] == 'left out'
    again = Log(tmp_path / 'again', until=time.time() + 60, skip=2)
    for i in range(3):
        again.attempt(str(i), lambda i=i: [('table', {'n': i})])
    assert [line['row'] for line in read(again.path) if 'row' in line] == [{'n': 2}]


def test_a_broken_context_ends_the_process(log, monkeypatch):
    def synchronize():
        raise RuntimeError('an illegal memory access was encountered')

    class Ended(BaseException):
        pass

    def end(status):
        assert status != 0
        raise Ended

    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: True)
    monkeypatch.setattr(torch.cuda, 'synchronize', synchronize)
    monkeypatch.setattr('os._exit', end)
    with pytest.raises(Ended):
        log.attempt('bad', lambda: 1 / 0)
    assert read(log.path)[-1]['kind'] == 'error'
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: None)
    log.attempt('mere mistake', lambda: 1 / 0)


def test_a_line_that_is_cut_off_is_left_out(tmp_path):
    path = tmp_path / 'lines'
    path.write_text('{"kind": "begin"}\n{"kind": "ro')
    assert read(path) == [{'kind': 'begin'}]


PART = """
import os, time
TITLE, SHARE, CRITICAL = 'Fake', 1, {critical}
def tasks(settings): return ['one', 'two']
def run(task, settings, log):
    log.attempt('good', lambda: [('numbers', {{'task': task, 'case': 'good'}})])
    if task == 'one':
        log.attempt('bad', lambda: {bad})
    log.attempt('last', lambda: [('numbers', {{'task': task, 'case': 'last'}})])
"""


def run_fake(tmp_path, monkeypatch, bad: str, critical=False, minutes=10.0) -> int:
    """Run a report whose only part is a module beside the real ones."""
    folder = tmp_path / 'gpu_parts'
    folder.mkdir()
    (folder / 'fake.py').write_text(PART.format(bad=bad, critical=critical))
    start = (
        'import sys\nfrom tools.benchmark import gpu_parts, gpu_report\n'
        f'gpu_parts.__path__.append({str(folder)!r})\n'
        "gpu_parts.PARTS = ('fake',)\n"
        f'gpu_report.COMMAND = sys.executable, {str(tmp_path / "start.py")!r}\n'
        f'gpu_report.GRACE = 0.5\n'
        'sys.exit(gpu_report.main())\n'
    )
    (tmp_path / 'start.py').write_text(start)
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    done = subprocess.run(
        [sys.executable, tmp_path / 'start.py', '--dry-run', '--out', tmp_path / 'out']
        + ['--minutes', str(minutes)],
        capture_output=True,
        text=True,
    )
    assert 'wrote' in done.stdout, done.stdout + done.stderr
    return done.returncode


@pytest.mark.parametrize(
    'bad, message',
    [
        pytest.param(
            'os.abort()', 'the process ended with status -6', marks=pytest.mark.slow
        ),
        ('1 / 0', 'ZeroDivisionError'),
    ],
    ids=['abort', 'error'],
)
def test_a_crash_of_one_case(tmp_path, monkeypatch, bad, message):
    """The next process of the task goes on with the next case."""
    assert run_fake(tmp_path, monkeypatch, bad) == 0
    report = report_of(tmp_path / 'out')
    cases = [(row['task'], row['case']) for row in report['tables']['numbers']]
    assert cases == [
        ('one', 'good'),
        ('one', 'last'),
        ('two', 'good'),
        ('two', 'last'),
    ]
    (error,) = report['errors']
    assert message in error['message'] and 'bad' in error['case']


@pytest.mark.slow
def test_a_case_that_hangs_is_killed(tmp_path, monkeypatch):
    bad = 'time.sleep(600)'
    assert run_fake(tmp_path, monkeypatch, bad, minutes=0.1) == 0
    report = report_of(tmp_path / 'out')
    assert any('stopped' in error['message'] for error in report['errors'])


@pytest.mark.parametrize(
    'row, error, critical, wrong',
    [
        (dict(passed=True), None, True, 0),
        (dict(passed=False), None, False, 1),
        (dict(), 'RuntimeError: any', False, 0),
        (dict(), 'RuntimeError: any', True, 1),
        (dict(), 'AssertionError: out', False, 1),
        (dict(), 'stopped: it went on after its time', True, 0),
    ],
)
def test_what_makes_the_report_fail(tmp_path, row, error, critical, wrong):
    settings = Settings(tmp_path)
    settings.lines.mkdir()
    part = 'correctness' if critical else 'speed'
    log = Log(settings.lines / f'{part}-masked_attention.jsonl', until=0)
    log.row('table', error=2.0, **row)
    if error:
        log.write('error', case='any', message=error, traceback='')
    assert len(summary.write(settings, time.time())) == wrong
    assert f'wrong results: {wrong}' in (tmp_path / 'report.md').read_text()


@pytest.mark.parametrize(
    'options, message',
    [
        (['--minutes', '0'], 'must be positive, got 0'),
        (['--parts', 'magic', '--dry-run'], "got 'magic'"),
        ([], 'sees no CUDA device'),
    ],
)
def test_bad_arguments_are_named(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr('os.environ', dict(gpu_report.os.environ))
    with pytest.raises(SystemExit) as caught:
        gpu_report.main([*options, '--out', str(tmp_path)])
    assert message in f'{caught.value}{capsys.readouterr().err}'


def test_every_part_has_what_the_report_needs(tmp_path):
    for name in gpu_parts.PARTS:
        part = gpu_parts.load(name)
        assert part.TITLE and part.SHARE > 0
        assert part.tasks(Settings(tmp_path, dry_run=True))


def test_runs_that_differ_are_found(monkeypatch):
    from tools.benchmark.gpu_parts import races

    results = iter([[torch.zeros(2)], [torch.zeros(2)], [torch.tensor([0.0, 1e-9])]])
    monkeypatch.setattr(races, 'repeat', lambda *args: list(results))
    call = races.small_calls('masked_attention')[0]
    ((table, row),) = races.repeated(call, torch.float32, 'cpu')
    assert table == 'races' and row['passed'] is False


def fake_sanitizer(tmp_path, monkeypatch, text: str):
    path = tmp_path / 'compute-sanitizer'
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))


@pytest.mark.parametrize(
    'text, passed, note',
    [
        ('exit 0', True, ''),
        ('echo "Race reported"; exit 99', False, 'Race reported'),
        ('echo "Device not supported" >&2; exit 1', None, 'Device not supported'),
        (None, None, 'not on PATH'),
    ],
)
def test_sanitizer(tmp_path, monkeypatch, log, text, passed, note):
    from tools.benchmark.gpu_parts import races

    monkeypatch.setenv('PATH', str(tmp_path))
    if text is not None:
        fake_sanitizer(tmp_path, monkeypatch, text)
    ((_, row),) = races.sanitized('masked_attention', 'memcheck', log)
    assert row.get('passed') is passed and note in row.get('note', '')


@pytest.mark.slow
def test_dry_run_of_all_parts(tmp_path):
    done = dry_run(tmp_path, '--minutes', '30')
    assert done.returncode == 0, done.stdout + done.stderr
    report = report_of(tmp_path)
    assert not report['errors']
    tables = {'device', 'correctness', 'races', 'rates', 'models_gpu'}
    assert report['tables'].keys() >= tables
    assert all(row['passed'] for row in report['tables']['races'])
    assert {row['operator'] for row in report['tables']['correctness']} >= {
        'masked_attention',
        'ms_deform_attn',
    }


def test_a_report_without_times_is_not_drawn(tmp_path):
    path = tmp_path / 'report.json'
    path.write_text('{"tables": {"device": [{"name": "os"}]}}')
    with pytest.raises(ValueError, match='no tables to draw'):
        plot.main([str(path)])


@pytest.mark.parametrize('name', gpu_parts.load('speed').SHAPES)
def test_operators_take_the_shapes_of_the_report(name):
    """Sides with a height and a width, where the report has some; small ones here."""
    from tools.benchmark import operators

    module, shapes = operators.load(name), gpu_parts.load('speed').SHAPES[name]
    if any(isinstance(side, tuple) for side, _ in shapes):
        assert module.RECTANGLES
        cases = module.cases((3, 4), 1, 'cpu', torch.float32)
        assert cases[0].run('forward')[0].isfinite().all()
