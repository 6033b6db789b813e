"""Calls of operators at the shapes of real models, for tests and reports on a GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmattn.ops.common.operator import REFERENCE
from tools.benchmark.inputs import FORMS, SIGNATURES, names_of, split
from tools.benchmark.tolerances import (
    deterministic,
    error_in_tolerances,
    run_with_grads,
)

PYRAMID = ((100, 167), (50, 84), (25, 42), (13, 21))  # of an image of 800 x 1333


@dataclass(frozen=True)
class Call:
    """Describe a call of an operator.

    Args:
        operator: name of the operator that runs, as in `torch.ops.mmattn`.
        arguments: sizes and settings, as `tools.benchmark.inputs.setup` takes them.
        shape: those that are in the name of the call.
        deterministic: whether to run with `torch.use_deterministic_algorithms`.
    """

    operator: str
    arguments: dict[str, Any]
    shape: dict[str, Any]
    deterministic: bool = False

    def __str__(self) -> str:
        shape = ', '.join(f'{key} {value}' for key, value in self.shape.items())
        return f'{shape}, deterministic' if self.deterministic else shape

    def run_on(self, backend: str | None) -> Callable[..., Tensor]:
        """Return a function of the tensors that runs on a backend."""
        settings, _ = split(self.operator, **self.arguments)
        return partial(SIGNATURES[self.operator].attend, backend=backend, **settings)

    def make_tensors(self, **options) -> list[Tensor | None]:
        """Return the tensors; `options` are dtype, device, seed, and other sizes."""
        _, sizes = split(self.operator, **self.arguments)
        return SIGNATURES[self.operator].make(**sizes | options)

    def errors_on(
        self, backend: str, dtype: torch.dtype, device: str = 'cpu'
    ) -> dict[str, float]:
        """Return the errors of a backend's output and gradients.

        They are errors from the definition in float64, in units of the tolerance.
        """
        tensors = self.make_tensors(dtype=dtype, device=device)
        on_definition = self.run_on(REFERENCE)
        out, grads = run_with_grads(on_definition, tensors, dtype=torch.float64)
        with deterministic(self.deterministic):
            actual, actual_grads = run_with_grads(self.run_on(backend), tensors)
        errors = {'out': error_in_tolerances(out, actual)}
        for name, expected, x in zip(
            names_of(self.operator), grads, actual_grads, strict=True
        ):
            if expected is not None:
                errors[f'grad of {name}'] = error_in_tolerances(expected, x, dtype)
        return errors


def _plain(operator: str) -> Callable[..., Call]:
    """Return the function that makes a call of an operator whose name has it all."""
    return lambda **shape: Call(operator, shape, shape)


_deformable = _plain('deformable_attention')
_landmark = _plain('landmark_attention')
_neighborhood = _plain('neighborhood_attention')
_structure_aware = _plain('structure_aware_attention')


def _masked(mask: str, *, grid, num_special, kernel_size=3, **shape) -> Call:
    """Return a call with the mask 'soft', 'zero' or 'neg_inf'."""
    shape = dict(grid=grid, kernel_size=kernel_size, num_special=num_special) | shape
    settings = dict(mask_fill=mask, bias=True)
    if mask == 'soft':
        settings = dict(mask_fill='zero', alpha=True)
    return Call('masked_attention', shape | settings, shape | dict(mask=mask))


def _ms_deform(form: str, in_order: bool, *, shapes, **shape) -> Call:
    named = dict(levels=len(shapes)) | shape | dict(form=form)
    arguments = dict(shapes=shapes) | shape | FORMS[form]
    return Call('ms_deform_attn', arguments, named, in_order)


_MASKED = [
    dict(grid=(56, 56), num_special=0, B=8, M=3, D=32),
    dict(grid=(14, 14), num_special=1, B=32, M=3, D=64),
    dict(grid=(14, 14), num_special=2, B=4, M=3, D=48),
    dict(grid=(14, 14), num_special=1, B=4, M=3, D=96),
    dict(grid=(25, 42), num_special=0, B=1, M=4, D=128),
    dict(grid=(64, 83), num_special=0, B=1, M=1, D=32),
]
_SOFT = [
    *_MASKED[1:4],
    dict(grid=(28, 28), num_special=0, B=4, M=6, D=128),
    dict(grid=(50, 84), num_special=0, B=1, M=1, D=32),
]
REAL = [
    *(
        _deformable(**shape, align_corners=align_corners)
        for align_corners in (True, False)
        for shape in (
            dict(grid=(56, 56), K=49, B=4, M=2, G=1, D=32),
            dict(grid=(14, 14), K=49, B=32, M=8, G=4, D=32),
            dict(grid=(7, 7), K=49, B=8, M=16, G=8, D=32),
            dict(grid=(50, 84), K=1050, B=1, M=8, G=4, D=32, table_size=(27, 27)),
            dict(grid=(25, 42), K=1050, B=2, M=4, G=4, D=64, table_size=(13, 13)),
            dict(grid=(28, 28), K=196, B=2, M=3, G=3, D=48),
            dict(grid=(9, 130), K=70, B=2, M=2, G=1, D=16),
        )
    ),
    *(
        _landmark(B=B if M == 10 else 1, N=N, L=L, M=M, D=D, E=E)
        for B, N, L in ((128, 196, 49), (2, 4200, 49), (1, 67, 300))
        for M, D, E in ((10, 32, 20), (10, 32, None), (32, 128, 64))
    ),
    *(_masked('soft', **shape) for shape in _SOFT),
    *(_masked('zero', **shape) for shape in _MASKED),
    *(_masked('neg_inf', **_MASKED[i]) for i in (0, 2)),
    *(_masked('zero', kernel_size=5, **_MASKED[i]) for i in (0, 2)),
    _masked('zero', kernel_size=7, **_MASKED[2]),
    _masked('neg_inf', kernel_size=7, **_MASKED[0]),
    *(
        _ms_deform(form, in_order, **shape)
        for shape in (
            dict(shapes=PYRAMID, Q=300, B=2, M=8, D=32, P=4),
            dict(shapes=PYRAMID, Q=22223, B=1, M=8, D=32, P=4),
            dict(shapes=((63, 51), (1, 1)), Q=997, B=3, M=5, D=71, P=3),
            dict(shapes=((40, 40),), Q=1600, B=2, M=12, D=64, P=4),
        )
        for form in FORMS
        for in_order in (False, True)
    ),
    _neighborhood(K=7, D=32, grid=(56, 56), B=8, M=2),
    _neighborhood(K=7, D=32, grid=(14, 14), B=32, M=8),
    _neighborhood(K=7, D=32, grid=(200, 334), B=1, M=2),
    _neighborhood(K=7, D=32, grid=(50, 84), B=2, M=8),
    *(
        _structure_aware(grid=grid, B=B, M=M, D=16, K=K)
        for K in (8, 16)
        for grid, B, M in (
            ((7, 7), 32, 24),
            ((14, 14), 32, 20),
            ((28, 28), 8, 8),
            ((56, 56), 8, 4),
            ((64, 64), 1, 2),
            ((64, 33), 1, 2),
            ((84, 84), 2, 4),
            ((50, 84), 1, 20),
            ((4, 14, 14), 2, 12),
        )
    ),
]
OPERATORS = tuple(dict.fromkeys(call.operator for call in REAL))
_SMALL, _WIDE = (dict(B=1, M=1, D=D) for D in (4, 32))  # in one part, or several
SMALL = [
    _deformable(grid=(3, 4), K=33, G=1, **_SMALL, align_corners=True),
    _landmark(N=20, L=5, E=2, **_SMALL),
    _masked('zero', grid=(4, 5), num_special=1, **_SMALL),
    _masked('soft', grid=(4, 5), num_special=0, **_SMALL),
    _ms_deform('locations', False, shapes=((3, 4), (1, 1)), Q=5, P=2, **_WIDE),
    _ms_deform('offsets in boxes', True, shapes=((3, 4),), Q=5, P=2, **_WIDE),
    _neighborhood(grid=(6, 5), K=3, **_SMALL),
    _structure_aware(grid=(5, 7), K=2, **_SMALL),
    _structure_aware(grid=(5, 13), K=2, **_SMALL),
    _structure_aware(grid=(6, 12), K=2, **_SMALL),
]
_FILLED = dict(B=1, M=2, D=16)
FILLED = [
    _neighborhood(grid=(9, 8), K=7, **_FILLED),
    _deformable(grid=(7, 9), K=19, G=2, **_FILLED, align_corners=True),
    _landmark(N=70, L=17, E=3, **_FILLED),
    _masked('zero', grid=(9, 8), num_special=1, **_FILLED),
    _masked('soft', grid=(9, 8), num_special=1, **_FILLED),
    _ms_deform('locations', False, shapes=((5, 4), (3, 2)), Q=9, P=2, **_FILLED),
    _ms_deform('offsets in boxes', True, shapes=((5, 4),), Q=9, P=2, **_FILLED),
    _structure_aware(grid=(7, 9), K=16, **_FILLED),
]
_MAPS = ((9, 7), (4, 3), (1, 1))
ODD = [
    _neighborhood(grid=(13, 17), K=7, B=2, M=2, D=32),
    _neighborhood(grid=(9, 11), K=5, B=1, M=3, D=20),
    _neighborhood(grid=(13, 13), K=13, B=1, M=1, D=64),
    _deformable(grid=(9, 13), K=70, B=2, M=4, G=2, D=32, align_corners=True),
    _deformable(
        grid=(7, 11), K=33, B=1, M=3, G=3, D=48, table_size=(9, 5), align_corners=False
    ),
    _deformable(grid=(1, 1), K=1, B=1, M=1, G=1, D=5, align_corners=True),
    _landmark(B=2, N=70, L=17, M=3, D=8, E=5),
    _landmark(B=1, N=67, L=70, M=2, D=16, E=None),
    _landmark(B=1, N=130, L=49, M=10, D=32, E=20),
    _masked('zero', grid=(9, 13), num_special=2, B=2, M=2, D=48),
    _masked('neg_inf', grid=(7, 5), num_special=0, B=1, M=3, D=32, kernel_size=5),
    _masked('soft', grid=(9, 13), num_special=1, B=2, M=2, D=48),
    _masked('soft', grid=(12, 11), num_special=2, B=1, M=1, D=128, kernel_size=5),
    _ms_deform('offsets from points', False, shapes=_MAPS, Q=37, B=2, M=3, D=32, P=4),
    _ms_deform('offsets in boxes', True, shapes=_MAPS, Q=19, B=2, M=2, D=71, P=3),
    _ms_deform('locations', False, shapes=_MAPS, Q=19, B=1, M=2, D=30, P=3),
    _structure_aware(grid=(7, 7), B=2, M=3, D=16, K=8),
    _structure_aware(grid=(14, 14), B=1, M=2, D=16, K=3),
    _structure_aware(grid=(28, 9), B=1, M=1, D=16, K=2),
    _structure_aware(grid=(2, 3, 4), B=1, M=2, D=5, K=3),
    _structure_aware(grid=(5, 66), B=1, M=1, D=16, K=2),
]


def _of(operator: str, calls: list[Call]) -> list[Call]:
    return [call for call in calls if call.operator == operator]


def real_calls(operator: str) -> list[Call]:
    """Return an operator's calls at the shapes of real models."""
    return _of(operator, REAL)


def small_calls(operator: str) -> list[Call]:
    """Return calls that Triton's interpreter runs in seconds, one of each kind."""
    return _of(operator, SMALL)


def filled_calls(operator: str) -> list[Call]:
    """Return small calls that fill a tile, so that little of a kernel is masked."""
    return _of(operator, FILLED)


def odd_calls(operator: str) -> list[Call]:
    """Return calls whose sizes fit no tile, with every form of an operator."""
    return _of(operator, ODD)
