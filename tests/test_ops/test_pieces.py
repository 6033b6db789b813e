"""Operators a piece at a time: the pieces, and autograd inside an operator."""

import pytest
import torch
from operator_cases import setup
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from mmattn.ops.common import pieces
from tools.benchmark.tolerances import run_with_grads


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    'limit, sizes',
    [
        (20, [(1, 1, 2), (1, 1, 2), (1, 1, 1)] * 6),
        (50, [(1, 1, 5)] * 6),
        (100, [(1, 2, 5), (1, 1, 5)] * 2),
        (150, [(1, 3, 5)] * 2),
        (300, [(2, 3, 5)]),
    ],
)
def test_split_fills_the_last_axis_first(monkeypatch, limit, sizes):
    monkeypatch.setattr(pieces, 'ELEMENTS', limit)
    parts = list(pieces.split(2, 3, 5, elements=10))
    assert [tuple(x.stop - x.start for x in part) for part in parts] == sizes
    counts = torch.zeros(2, 3, 5)
    for part in parts:
        counts[part] += 1
    assert (counts == 1).all()


def test_split_of_nothing():
    assert list(pieces.split(0, 3, elements=10)) == []


@pytest.mark.parametrize('mode', [Watch, lambda: FlopCounterMode(display=False)])
@pytest.mark.parametrize(
    'name',
    [
        'masked_attention',
        'neighborhood_attention',
        'deformable_attention',
        'ms_deform_attn',
    ],
)
def test_backward_under_a_mode_that_watches_operators(name, mode):
    """PyTorch switches autograd off inside an operator, and more so under a mode."""
    function, inputs = setup(name, 'torch')
    expected = run_with_grads(function, inputs)
    with mode():
        out, grads = run_with_grads(function, inputs)
    assert torch.equal(out, expected[0])
    assert all(
        x is y is None or torch.equal(x, y)
        for x, y in zip(grads, expected[1], strict=True)
    )
