"""FLOPs of each operator: by hand, the same on every backend, and backward."""

from functools import partial
from math import log2, prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis.flop_rules import DENSE_RULES
from mmattn.ops.common.operator import OPERATORS
from tools.benchmark.inputs import setup


def masked(grid, kernel_size, num_special, alpha=False):
    """Return a case: a hard mask counts windows, not clipped; a soft mask all pairs."""
    shape = dict(grid=grid, num_special=num_special, kernel_size=kernel_size)
    N, window = num_special + prod(grid), prod(min(kernel_size, side) for side in grid)
    pairs = prod(grid) * (window + num_special) + num_special * N
    pairs = N**2 if alpha else pairs
    return 'masked_attention', dict(shape, alpha=alpha), 2 * 2 * 24 * pairs, 3


def structure_aware(B, grid, K):
    """Return a case: K + 1 transforms of k and of v, and contractions."""
    values = B * prod(grid) * 3 * 4
    transforms = 2 * sum(round(n * values * log2(prod(grid))) for n in (1, K))
    contractions = 2 * values * K
    flops = transforms + contractions
    factor = (2 * transforms + 3 * contractions) / flops
    return 'structure_aware_attention', dict(B=B, grid=grid, K=K, D=4), flops, factor


LANDMARK, WINDOWS = 'landmark_attention', 'neighborhood_attention'
DEFORMABLE = 'deformable_attention'
# An operator, its sizes, products of the forward, and how often a step has them.
CASES = {
    # Maps of N x L for scores and values, and two mixings each.
    'landmark': (
        LANDMARK,
        dict(N=196, L=49, M=10, D=32, E=20),
        2 * 196 * 49 * (4 * 10 * 32 + 4 * 20 * 10),
        3,
    ),
    'landmark-unmixed': (LANDMARK, dict(B=1, L=7), 63 * 7 * 4 * 3 * 8, 3),
    'structure-aware': structure_aware(2, (7, 5), 4),
    'structure-aware-3d': structure_aware(1, (2, 3, 4), 2),
    'masked': masked((7, 5), 3, 1),
    'masked-special': masked((4, 6), 5, 2),
    'masked-inside': masked((2, 3), 7, 1),
    'masked-soft': masked((7, 5), 3, 1, alpha=True),
    'neighborhood': (WINDOWS, dict(D=4), 2 * 2 * 9 * 8 * 5**2 * 3 * 4, 3),
    'neighborhood-large': (
        WINDOWS,
        dict(grid=(60, 50), B=1, M=2, D=4),
        2 * 60 * 50 * 5**2 * 2 * 4,
        3,
    ),
    # Scores and values count, and the bias does not.
    'deformable-dat': (
        DEFORMABLE,
        dict(K=12, align_corners=False),
        2 * 2 * 35 * 12 * 4 * 8,
        3,
    ),
    'deformable-dat++': (DEFORMABLE, dict(K=1), 2 * 2 * 35 * 4 * 8, 3),
    # Four pixels and a weight count for each channel of each point.
    'multi-scale': ('ms_deform_attn', dict(Q=6), 5 * 2 * 6 * 3 * 8 * 3 * 2, 3),
    'multi-scale-fused': (
        'ms_deform_attn',
        dict(Q=6, fused=True),
        5 * 2 * 6 * 3 * 8 * 3 * 2,
        3,
    ),
}


def test_each_operator_has_a_case():
    assert {name for name, *_ in CASES.values()} == set(OPERATORS)


def counted(function, tensors, backward, rules=None):
    leaves = [x if x is None else x.detach().requires_grad_() for x in tensors]
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        out = function(*leaves)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
@pytest.mark.parametrize('name, shape, flops, factor', CASES.values(), ids=CASES)
def test_operator_counts_the_same_on_every_backend(
    name, shape, flops, factor, backward
):
    function, tensors = setup(name, **shape)
    backends = {'reference', *OPERATORS[name].backends}
    backends -= {*OPERATORS[name].unsupported(*tensors)}
    if name == 'ms_deform_attn':  # PyTorch's grid_sample has no rule
        backends -= {'reference'}
    elif name == 'structure_aware_attention':  # transforms of kernels are not its own
        dims = tuple(range(-len(shape['grid']), 0))
        tensors[3:5] = (torch.fft.rfftn(w, dim=dims) for w in tensors[3:5])
        function = partial(function, grid=shape['grid'])
        backends -= {'cpp'} if len(dims) == 3 else set()
    expected = round(2 * flops * (factor if backward else 1))
    dense = name == 'masked_attention'  # which the definition is, without our rule
    assert len(backends) >= 1
    for backend in backends - ({'reference'} if dense else set()):
        run = partial(function, backend=backend)
        assert counted(run, tensors, backward) == expected, backend
        if dense:
            definition = partial(function, backend='reference')
            found = counted(run, tensors, backward, DENSE_RULES)
            assert found == counted(definition, tensors, backward)
