"""Neighborhood attention on a GPU, and on the CPU under Triton's interpreter."""

import pytest
import torch
from neighborhood_cases import (
    backend,
    choose_form,
)
from operator_checks import check_call, check_operator, every_real_call
from triton_devices import (
    each_of,
    every_device,
    outer_run,
    run_under_interpreter,
    seldom,
)

from tools.benchmark.inputs import make_neighborhood_inputs as make_inputs

pytest.importorskip('triton')

SMALL = dict(grid=(6, 9), K=3, B=1, M=2, D=4)
SHAPES = {
    'map of the window': dict(grid=(5, 5), K=5, B=1, M=1, D=4),
    '7x5, batch 2': dict(grid=(7, 5), K=3, M=2, D=5),
    '9x12, K 7': dict(grid=(9, 12), K=7, B=1, M=1, D=16),
}


@outer_run
def test_under_interpreter(cases):
    run_under_interpreter(__file__, cases)


@every_device
@pytest.mark.parametrize('shape', each_of(SHAPES, '9x12, K 7'))
def test_stencil(monkeypatch, shape, device):
    choose_form(monkeypatch, 'stencil')
    check_operator(backend('triton'), make_inputs(**shape, device=device))


@every_device
@pytest.mark.parametrize(
    'form, dtype',
    [
        ('dense', torch.float32),
        ('dense', torch.float16),
        ('dense', torch.bfloat16),
        ('tiles', torch.float32),
        ('tiles', torch.float16),
        ('tiles', torch.bfloat16),
        seldom('stencil', torch.float32),
        ('stencil', torch.float16),
        seldom('stencil', torch.bfloat16),
    ],
)
def test_every_dtype(monkeypatch, form, dtype, device):
    choose_form(monkeypatch, form)
    inputs = make_inputs(**SMALL, dtype=dtype, device=device)
    check_operator(backend('triton'), inputs)


@every_device
def test_it_is_the_fastest(monkeypatch, device):
    choose_form(monkeypatch, 'stencil')
    inputs = make_inputs(**SMALL, device=device)
    chosen, named = (backend(name)(*inputs) for name in (None, 'triton'))
    assert torch.equal(chosen, named)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@every_real_call('neighborhood_attention')
def test_real_shapes(call, dtype):
    check_call(call, 'torch', dtype, 'cuda')
    check_call(call, None, dtype, 'cuda')
