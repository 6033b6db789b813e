"""Calls of every operator for tests: tensors by position, the settings by name."""

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from mmattn.ops.common.operator import OPERATORS as REGISTERED
from mmattn.ops.structure_aware_attention import rfft_grid
from tools.benchmark.inputs import FORMS, LEVELS, names_of, setup
from tools.benchmark.inputs import SIGNATURES as OPERATORS


def backends_of(name: str) -> Mapping[str, ModuleType]:
    """Return an operator's backends by name, fastest first."""
    return REGISTERED[name].backends


def setup_registered(name: str, **shape):
    """Return the tensors and settings of a call of `torch.ops.mmattn`."""
    function, inputs = setup(name, 'reference', **shape)
    settings = dict(function.keywords)
    for key in ('backend', 'masked_heads'):
        settings.pop(key, None)
    if name == 'ms_deform_attn':
        settings['shapes'] = [side for level in settings['shapes'] for side in level]
    if name == 'structure_aware_attention':
        halves = (rfft_grid(w, settings['grid']) for w in inputs[3:5])
        inputs[3:5] = map(torch.view_as_real, halves)
    return inputs, settings


class Case(NamedTuple):
    """Describe a small call.

    Args:
        operator: name of the operator.
        shape: its sizes and settings.
        form: values of constants of the CPU backend, by their places in `mmattn.ops`,
            which make it take one of its forms.
        dynamic: sizes that may change in one compiled graph.
        repeats: whether it is as the case before but for the form.
    """

    operator: str
    shape: dict[str, Any]
    form: dict[str, Any] = {}
    dynamic: dict[str, Any] = dict(B=3)
    repeats: bool = False

    def setup(self, backend: str | None = None, **changes):
        return setup(self.operator, backend, **(self.shape | changes))


LANDMARK = dict(N=20, M=2, D=4, L=5)
MASKED = dict(grid=(4, 5), M=2, D=4)
CIRCULAR = dict(M=1, D=4, K=2)
DEFORMABLE = dict(grid=(4, 5), K=5, M=2, D=4, G=1)
SAMPLED = dict(Q=5, M=2, D=4)
WINDOWS = dict(grid=(6, 9), K=3, M=2, D=4)
LINEAR = {
    'masked_attention.decomposition.DENSE_TOKENS': 0,
    'masked_attention.decomposition.TILE': 2,
}
CASES = {
    'landmark': Case('landmark_attention', LANDMARK, dynamic=dict(N=13, B=3)),
    'landmark, mixed heads': Case(
        'landmark_attention', dict(LANDMARK, E=3), dynamic=dict(N=13, B=3)
    ),
    'masked': Case(
        'masked_attention', dict(MASKED, bias=True), LINEAR, dict(grid=(9, 8), B=3)
    ),
    'masked, some heads': Case(
        'masked_attention', dict(MASKED, bias=True, masked_heads=1), LINEAR
    ),
    'masked, neg_inf': Case(
        'masked_attention', dict(MASKED, mask_fill='neg_inf', num_special=0), LINEAR
    ),
    'masked, dense': Case('masked_attention', dict(MASKED, bias=True), repeats=True),
    'masked, soft': Case(
        'masked_attention', dict(MASKED, alpha=True), {}, dict(grid=(9, 8), B=3)
    ),
    'structure-aware': Case(
        'structure_aware_attention', dict(CIRCULAR, grid=(5, 7)), dynamic=dict(B=5)
    ),
    'structure-aware, fft': Case(
        'structure_aware_attention', dict(CIRCULAR, grid=(3, 66)), repeats=True
    ),
    'deformable': Case('deformable_attention', DEFORMABLE, {}, dict(K=6, B=3)),
    'deformable, any table': Case(
        'deformable_attention',
        dict(DEFORMABLE, table_size=(3, 6), align_corners=False),
        {},
        dict(K=6, grid=(9, 8)),
    ),
    **{
        f'ms-deform, {form}': Case(
            'ms_deform_attn', dict(SAMPLED, **settings), {}, dict(Q=29, B=3)
        )
        for form, settings in FORMS.items()
    },
    'neighborhood': Case(
        'neighborhood_attention', WINDOWS, {}, dict(grid=(7, 11), B=3)
    ),
}


def take_form(monkeypatch: pytest.MonkeyPatch, form: dict[str, Any]):
    """Make calls of any size take one form of the CPU backend."""
    for place, value in form.items():
        module, _, constant = place.rpartition('.')
        module = importlib.import_module(f'mmattn.ops.{module}')
        monkeypatch.setattr(module, constant, value)


every_form = pytest.mark.parametrize('form', FORMS.values(), ids=FORMS)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
on_gpu = [pytest.mark.gpu, needs_gpu]


# Their small calls are executed as compiled, in test_executed_kernels.
INTERPRETED_SLOWLY = 'landmark_attention', 'structure_aware_attention'


def kernels(forms: bool = True, interpreter: Sequence | None = None) -> list:
    """Return parameters: every case on every kernel.

    They are the case, a backend's name and a device: the CPU's kernels on the CPU, and
    Triton's on a GPU and under the interpreter.

    Args:
        forms: whether to take all forms and backends of a CPU, or each call once, of
            which only the operator's first is fast.
        interpreter: marks of Triton's kernels under the interpreter; None without it.
    """
    rows, seen = [], set()
    for name, case in CASES.items():
        if forms:
            rows += [(name, case, x, 'cpu', ()) for x in cpu_kernels(case)]
        elif not case.repeats:
            marks = pytest.mark.slow if case.operator in seen else ()
            rows.append((name, case, cpu_kernels(case)[-1], 'cpu', marks))
            seen.add(case.operator)
        if not case.repeats and 'triton' in backends_of(case.operator):
            rows.append((name, case, 'triton', 'cuda', on_gpu))
            if interpreter is not None:
                slow = [pytest.mark.slow] * (case.operator in INTERPRETED_SLOWLY)
                rows.append((name, case, 'triton', 'cpu', [*interpreter, *slow]))
    return [
        pytest.param(*row, id=f'{name}, {row[1]}, {row[2]}', marks=marks)
        for name, *row, marks in rows
    ]


def cpu_kernels(case: Case) -> list[str]:
    """Return the names of the backends that run on a CPU, without the definition."""
    tensors = case.setup()[1]
    return [
        name
        for name, module in backends_of(case.operator).items()
        if name not in ('triton', 'reference') and not module.unsupported(*tensors)
    ]


def with_grad(tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Return tensors as leaves of autograd's graph; None stays None."""
    return tuple(None if x is None else x.detach().requires_grad_() for x in tensors)


__all__ = ['FORMS', 'LEVELS', 'OPERATORS', 'names_of', 'setup']
