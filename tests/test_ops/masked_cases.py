"""Shapes and kinds of masks for the tests of masked attention."""

import pytest

from mmattn.ops import masked_attention
from tools.benchmark.inputs import make_masked_inputs

NAMES = 'q k v bias alpha'.split()
SHAPES = {
    'one token': dict(grid=(1, 1), num_special=0),
    'one patch, class token': dict(grid=(1, 1)),
    'tokens 63 in a row': dict(grid=(1, 63), num_special=0),
    'tokens 63 in a column': dict(grid=(63, 1), num_special=0),
    'tokens 63 and one': dict(grid=(7, 9)),
    'grid 7x5': dict(grid=(7, 5), num_special=0),
    'grid 7x5, two special': dict(grid=(7, 5), num_special=2),
    'grid 9x11, width 5': dict(grid=(9, 11), kernel_size=5),
    'grid 9x11, width 7, two special': dict(grid=(9, 11), kernel_size=7, num_special=2),
    'width 1': dict(grid=(4, 6), kernel_size=1),
    'grid 8x12, in tiles': dict(grid=(8, 12), num_special=0),
    'one head, batch 1': dict(grid=(9, 8), B=1, M=1),
    'odd width of a head': dict(grid=(5, 14), D=5, num_special=0),
    'map inside the mask': dict(grid=(2, 3), kernel_size=7),
    'map of the width of the mask': dict(grid=(3, 3), num_special=0),
    'map lower than the mask': dict(grid=(2, 40), kernel_size=5),
    'one of everything': dict(grid=(1, 1), num_special=0, B=1, M=1, D=1),
}
KINDS = {
    'hard': dict(),
    'bias': dict(bias=True),
    'neg_inf': dict(mask_fill='neg_inf'),
    'neg_inf, bias': dict(mask_fill='neg_inf', bias=True),
    'soft': dict(alpha=True),
}

every_shape = pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES.keys())
every_kind = pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS.keys())


def setup(name, *, mask_fill='zero', **shape):
    """Return the operator as a function of its five tensors, and the tensors."""
    inputs = make_masked_inputs(**shape)
    stencil = dict(
        grid=shape.get('grid', (7, 5)),
        kernel_size=shape.get('kernel_size', 3),
        num_special=shape.get('num_special', 1),
        mask_fill=mask_fill,
    )

    def function(q, k, v, bias, alpha, backend=name):
        return masked_attention(
            q, k, v, bias=bias, alpha=alpha, backend=backend, **stencil
        )

    return function, inputs
