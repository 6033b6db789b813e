"""tools/benchmark/measure.py: turns, times, and peak memory against known answers."""

import functools
import itertools
import os
import platform
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from tools.benchmark import measure

UNIT = 2**20  # bytes of the tensor below
RESIDENT = """
import re, sys
from pathlib import Path
import torch
from tools.benchmark import measure, operators
cases = operators.load('landmark_attention').cases(22, 1, 'cpu', torch.float32)
def status(key):
    text = Path('/proc/self/status').read_text()
    return 1024 * int(re.search(key + r':\\s+(\\d+)', text)[1])
for case in cases:
    run = lambda: case.run('forward+backward')
    run()
    peak = measure.peak_memory(run, 'cpu')
    Path('/proc/self/clear_refs').write_text('5')
    before = status('VmRSS')
    run()
    print(peak, status('VmHWM') - before, case.method, sep='|')
"""


def python(code: str, **environment: str) -> str:
    """Return what code prints in a process with only this environment."""
    environment |= {'PYTHONPATH': str(measure.ROOT), 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, '-c', code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls_take_turns():
    called = []
    calls = {name: functools.partial(called.append, name) for name in 'abc'}
    times = measure.interleave(calls, rounds=3, seconds=1e-4)
    turns = [name for name, _ in itertools.groupby(called)]
    assert ''.join(turns) == 'abc' + 'abc' + 'ba' + 'bc'
    assert [len(times[name].seconds) for name in 'abc'] == [3, 3, 3]


def test_a_long_call_runs_once_a_round_by_any_clock():
    called, clock = [], itertools.count(step=5).__next__
    calls = {'a': functools.partial(called.append, 'a')}
    times = measure.interleave(calls, rounds=2, seconds=5, clock=clock)
    assert times['a'].seconds == [5, 5] and len(called) == 1 + 2
    asked = []

    def clock():
        asked.append(1)
        return time.perf_counter()

    measure.interleave({'short': int}, rounds=1, seconds=1e-4, clock=clock)
    assert len(asked) > 2  # by the first call


def test_ratio_is_that_of_the_medians():
    fast, slow = measure.Timing([1.0, 10.0, 2.0]), measure.Timing([3.0, 5.0, 10.0])
    assert fast.median == 2.0
    assert fast.columns(slow) == {'spread_percent': 450.0, 'speedup': 2.5}
    assert slow.columns(fast)['speedup'] == 0.4 and fast.columns(None)['speedup'] == ''


def test_rows_are_written_as_they_come(tmp_path, monkeypatch):
    def rows():
        yield {'a': 1}
        assert measure.read_csv(args.csv) == [dict(a='1', day='now', rounds='3')]
        yield {'a': 2, 'note': 'n'}

    monkeypatch.setattr(measure, 'about', lambda *names, **columns: columns)
    args = Namespace(csv=tmp_path / 'x.csv', rounds=3)
    found = measure.report(rows(), args, title='t', day='now')
    assert found == [{'a': 1}, {'a': 2, 'note': 'n'}]
    assert (
        tmp_path / 'x.csv'
    ).read_text() == 'a,note,day,rounds\n1,,now,3\n2,n,now,3\n'


@pytest.fixture
def tensor():
    return torch.ones(UNIT // 4)


@torch.library.custom_op('mmattn_test::three_units_inside', mutates_args=())
def three_units_inside(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) * (x + 2)).sum()


def exp_and_backward(x):
    x = x.detach().requires_grad_()
    x.exp().backward(x.detach())


@pytest.mark.parametrize(
    ('call', 'units'),
    [
        (lambda x: (x + 1) * (x + 2), 3),
        (lambda x: x + 1 + 1 + 1, 2),
        (three_units_inside, 3),
        (exp_and_backward, 2),
    ],
    ids=['temporaries', 'freed', 'inside an operator', 'backward'],
)
def test_peak_memory_of_a_known_allocation(tensor, call, units):
    for _ in range(2):  # a second run must not see what the first one left
        peak = measure.peak_memory(lambda: call(tensor), 'cpu')
        assert peak == pytest.approx(units * UNIT, abs=1024)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path('/proc/self/clear_refs').exists(), reason='needs the peak RSS of Linux'
)
def test_peak_memory_is_the_resident_memory():
    """With an allocator that gives everything back, the system sees the same peak."""
    options = {'MALLOC_MMAP_THRESHOLD_': '65536', 'MALLOC_TRIM_THRESHOLD_': '0'}
    lines = [line.split('|') for line in python(RESIDENT, **options).splitlines()]
    assert len(lines) == 6
    for peak, resident, method in lines:
        assert int(peak) == pytest.approx(int(resident), rel=0.15, abs=2 * UNIT), method


MKL = 'MKL_VERBOSE oneMKL 2024.0 Intel(R) Advanced Vector Extensions {}, Lnx 2.30GHz'
ONEDNN = 'onednn_verbose,v1,info,cpu,isa:Intel {}'


@pytest.mark.parametrize(
    ('aten', 'log', 'expected'),
    [
        ('AVX512', [ONEDNN.format('AVX 10.1')], 'AVX512'),
        ('AVX2', [ONEDNN.format('AVX2'), MKL.format('2 (Intel(R) AVX2)')], 'AVX2'),
        (
            'AVX512',
            [ONEDNN.format('AVX-512 with BF16'), MKL.format('2 (Intel(R) AVX2)')],
            'ATen:AVX512 oneDNN:AVX512 MKL:AVX2',
        ),
        ('DEFAULT', [ONEDNN.format('SSE4.1')], 'other'),
    ],
)
def test_instruction_set_of_the_libraries(monkeypatch, aten, log, expected):
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: aten)
    monkeypatch.setattr(measure, 'log_of_libraries', lambda: '\n'.join(log))
    assert measure.isa.__wrapped__() == expected


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='needs AVX2')
def test_instruction_set_and_compiled_code_follow_the_environment():
    code = 'import os; from tools.benchmark import measure; print(measure.isa())\n'
    code += 'print(os.environ["TORCHINDUCTOR_CACHE_DIR"])'
    names = 'ONEDNN_MAX_CPU_ISA', 'MKL_ENABLE_INSTRUCTIONS'
    libraries = dict.fromkeys(names, 'AVX2')
    found = python(code, ATEN_CPU_CAPABILITY='avx2', **libraries).splitlines()
    # MKL names no set on processors that are not Intel's.
    assert found[0] in ('AVX2', 'ATen:AVX2 oneDNN:AVX2 MKL:other')
    assert os.path.basename(found[1]) == 'inductor_avx2'
