"""tools/benchmark/measure.py: turns, times, and peak memory against known answers."""

import functools
import itertools
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip('rich')

from tools.benchmark import measure

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = 'from tools.benchmark import measure; print("a"); print(measure.isa())'

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


def test_calls_take_turns():
    called = []
    calls = {name: functools.partial(called.append, name) for name in 'abc'}
    times = measure.interleave(calls, rounds=3, seconds=1e-4)
    turns = [name for name, _ in itertools.groupby(called)]
    assert ''.join(turns) == 'abc' + 'abc' + 'ba' + 'bc'
    assert [len(times[name].seconds) for name in 'abc'] == [3, 3, 3]


def test_time_is_that_of_one_call():
    calls = {'2': lambda: time.sleep(0.002), '50': lambda: time.sleep(0.05)}
    times = measure.interleave(calls, rounds=3, seconds=0.01)
    assert 0.002 <= times['2'].median < 0.05 <= times['50'].median < 0.5


def test_ratio_is_that_of_the_medians():
    fast, slow = measure.Timing([1.0, 10.0, 2.0]), measure.Timing([3.0, 5.0, 10.0])
    assert fast.speedup_over(slow) == 2.5
    assert slow.speedup_over(fast) == 0.4
    assert fast.median == 2.0 and fast.spread == 4.5


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
        (lambda x: x + 1, 1),
        (lambda x: (x + 1) * (x + 2), 3),
        (lambda x: x + 1 + 1 + 1, 2),
        (lambda x: [x + i for i in range(5)] and None, 5),
        (three_units_inside, 3),
        (exp_and_backward, 2),
    ],
    ids=['output', 'temporaries', 'freed', 'list', 'inside an operator', 'backward'],
)
def test_peak_memory_of_a_known_allocation(tensor, call, units):
    for _ in range(2):  # a second run must not see what the first one left
        peak = measure.peak_memory(lambda: call(tensor), 'cpu')
        assert peak == pytest.approx(units * UNIT, abs=1024)


def test_peak_memory_does_not_subtract_what_was_there(tensor):
    held = []
    measure.peak_memory(lambda: held.append(tensor + 1), 'cpu')
    peak = measure.peak_memory(lambda: (held.clear(), tensor + 1), 'cpu')
    assert peak == pytest.approx(UNIT, abs=1024)


@pytest.mark.skipif(
    not Path('/proc/self/clear_refs').exists(), reason='needs the peak RSS of Linux'
)
def test_peak_memory_is_the_resident_memory():
    """With an allocator that gives everything back, the system sees the same peak."""
    result = subprocess.run(
        [sys.executable, '-c', RESIDENT],
        capture_output=True,
        text=True,
        env={
            'MALLOC_MMAP_THRESHOLD_': '65536',
            'MALLOC_TRIM_THRESHOLD_': '0',
            'OMP_NUM_THREADS': '1',
            'PYTHONPATH': str(ROOT),
        },
    )
    assert result.returncode == 0, result.stderr
    lines = [line.split('|') for line in result.stdout.splitlines()]
    assert len(lines) == 6
    for peak, resident, method in lines:
        assert int(peak) == pytest.approx(int(resident), rel=0.15, abs=2 * UNIT), method


MKL = 'MKL_VERBOSE oneMKL 2024.0 Intel(R) Advanced Vector Extensions {}, Lnx 2.30GHz'
ONEDNN = 'onednn_verbose,v1,info,cpu,isa:Intel {}'


@pytest.mark.parametrize(
    ('aten', 'log', 'expected'),
    [
        ('AVX512', [], 'AVX512'),
        ('AVX512', [ONEDNN.format('AVX 10.1')], 'AVX512'),
        ('AVX2', [ONEDNN.format('AVX2'), MKL.format('2 (Intel(R) AVX2)')], 'AVX2'),
        (
            'AVX512',
            [ONEDNN.format('AVX-512 with BF16'), MKL.format('2 (Intel(R) AVX2)')],
            'ATen:AVX512 oneDNN:AVX512 MKL:AVX2',
        ),
        ('SVE256', [ONEDNN.format('SVE (256 bits)')], 'SVE'),
        ('DEFAULT', [ONEDNN.format('SSE4.1')], 'other'),
    ],
)
def test_instruction_set_of_the_libraries(monkeypatch, aten, log, expected):
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: aten)
    monkeypatch.setattr(measure, 'log_of_libraries', lambda: '\n'.join(log))
    assert measure.isa.__wrapped__() == expected


@pytest.mark.skipif(platform.machine() != 'x86_64', reason='needs AVX2')
def test_instruction_set_follows_the_environment():
    libraries = {'ONEDNN_MAX_CPU_ISA': 'AVX2', 'MKL_ENABLE_INSTRUCTIONS': 'AVX2'}
    result = subprocess.run(
        [sys.executable, '-c', INSTRUCTIONS],
        capture_output=True,
        text=True,
        env={'ATEN_CPU_CAPABILITY': 'avx2', 'PYTHONPATH': str(ROOT), **libraries},
    )
    # MKL names no set on processors that are not Intel's.
    expected = 'a\nAVX2\n', 'a\nATen:AVX2 oneDNN:AVX2 MKL:other\n'
    assert result.stdout in expected, result.stderr
