"""Operators a piece at a time: the pieces, and autograd inside an operator."""

import pytest
import torch
from operator_cases import setup
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tools.benchmark.tolerances import run_with_grads


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


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
