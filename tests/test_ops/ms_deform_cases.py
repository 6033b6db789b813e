"""Shapes and forms for the tests of multi-scale deformable attention."""

import pytest

from mmattn.ops import fused_ms_deform_attn, ms_deform_attn
from tools.benchmark.inputs import make_ms_deform_inputs
from tools.benchmark.real_shapes import FORMS

LEVELS = ((7, 5), (4, 3), (1, 1))
NAMES = 'value points weights reference'.split()
SHAPES = {
    'three levels': dict(),
    'one level, one point': dict(shapes=((6, 7),), P=1),
    'one pixel': dict(shapes=((1, 1),), Q=5),
    'one row, one column': dict(shapes=((1, 63), (9, 1)), P=3),
    'one query': dict(Q=1),
    'prime queries, three images': dict(Q=31, B=3, M=1),
    'channels 30': dict(D=30, Q=5),
    'channels 71': dict(D=71, Q=5, M=2),
    'channels 1': dict(D=1),
    'one of everything': dict(shapes=((1, 1),), Q=1, B=1, M=1, D=1, P=1),
}

every_form = pytest.mark.parametrize('form', FORMS.values(), ids=FORMS.keys())
every_shape = pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES.keys())


def setup(name, **settings):
    """Return the operator as a function of its four tensors, and the tensors."""
    levels = settings.get('shapes', LEVELS)

    def function(value, points, weights, reference, backend=name):
        return attend(value, levels, points, weights, reference, backend)

    return function, make_ms_deform_inputs(**{'shapes': LEVELS} | settings)


def attend(value, levels, points, weights, reference, backend):
    """Either operator: the fused one where there is a reference."""
    if reference is None:
        return ms_deform_attn(value, levels, points, weights, backend=backend)
    return fused_ms_deform_attn(
        value, levels, reference, points, weights, backend=backend
    )
