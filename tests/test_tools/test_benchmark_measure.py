"""tools/benchmark/measure.py: turns, times, and peak memory against known answers."""

import functools
import itertools

import pytest
import torch

from tools.benchmark import measure

UNIT = 2**20  # bytes of the tensor below


def test_calls_take_turns():
    called = []
    calls = {name: functools.partial(called.append, name) for name in 'abc'}
    times = measure.interleave(calls, rounds=3, seconds=1e-4)
    turns = [name for name, _ in itertools.groupby(called)]
    assert ''.join(turns) == 'abc' + 'abc' + 'ba' + 'bc'
    assert [len(times[name].seconds) for name in 'abc'] == [3, 3, 3]


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
