"""FLOPs of each operator: by hand, the same on every backend, and backward."""

from math import log2, prod

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.analysis.flop_rules import DENSE_RULES
from mmattn.ops import neighborhood_mask
from mmattn.ops.common.operator import OPERATORS
from tools.benchmark import inputs as make

MASKED = dict(kernel_size=3, num_special=1, mask_fill='zero')
LEVELS = (7, 5), (4, 3), (1, 1)


def landmark(B, N, L, M, D, E=0):
    """Return a case: maps of N x L for scores and values, and two mixings each."""
    sizes = dict(B=B, N=N, L=L, M=M, D=D, E=E or None)
    mixing = 4 * E * M
    flops = B * N * L * (4 * M * D + mixing)
    return 'landmark_attention', make.make_landmark_inputs(**sizes), {}, flops, 3


def structure_aware(B, grid, K, M=3, D=4):
    """Return a case: K + 1 transforms of k and of v, and contractions."""
    *qkv, w_a, w_b, bias = make.make_structure_aware_inputs(
        grid=grid, B=B, M=M, D=D, K=K
    )
    # The transforms of kernels are not the operator's.
    dims = tuple(range(-len(grid), 0))
    spectra = [torch.view_as_real(torch.fft.rfftn(w, dim=dims)) for w in (w_a, w_b)]
    values = B * prod(grid) * M * D
    transforms = 2 * sum(round(n * values * log2(prod(grid))) for n in (1, K))
    contractions = 2 * values * K
    factor = (2 * transforms + 3 * contractions) / (transforms + contractions)
    flops = transforms + contractions
    tensors = (*qkv, *spectra, bias)
    settings = dict(grid=grid)
    return 'structure_aware_attention', tensors, settings, flops, factor


def masked(grid, kernel_size, num_special, soft, B=2, M=3, D=8):
    """Return a case: a hard mask counts windows, not clipped; a soft mask all pairs."""
    sizes = dict(grid=grid, num_special=num_special, B=B, M=M, D=D, alpha=soft)
    tensors = make.make_masked_inputs(**sizes)
    settings = dict(MASKED, grid=grid, kernel_size=kernel_size, num_special=num_special)
    N = num_special + prod(grid)
    window = prod(min(kernel_size, side) for side in grid)
    pairs = prod(grid) * (window + num_special) + num_special * N
    ones = int(neighborhood_mask(grid, kernel_size, num_special).sum())
    assert ones < pairs < N**2 or ones == pairs == N**2
    flops = 2 * B * M * D * (N**2 if soft else pairs)
    return 'masked_attention', tensors, settings, flops, 3


def neighborhood(grid, B=1, M=2, D=4, K=5):
    tensors = make.make_neighborhood_inputs(grid=grid, B=B, M=M, D=D, K=K)
    flops = 2 * B * prod(grid) * K**2 * M * D
    return 'neighborhood_attention', tensors, {}, flops, 3


def deformable(keys, align_corners, B=2, grid=(7, 5), M=4, D=8):
    """Return a case: scores and values count, and the bias does not."""
    tensors = make.make_deformable_inputs(B=B, grid=grid, K=keys, M=M, D=D, G=2)
    settings = dict(grid=grid, align_corners=align_corners)
    flops = 2 * B * prod(grid) * keys * M * D
    return 'deformable_attention', tensors, settings, flops, 3


def multi_scale(fused, B=2, Q=6, M=3, D=4, P=2):
    """Return a case: four pixels and a weight count for each channel of each point."""
    tensors = make.make_ms_deform_inputs(
        shapes=LEVELS, B=B, Q=Q, M=M, D=D, P=P, fused=fused
    )
    flops = 5 * B * Q * M * D * len(LEVELS) * P
    return 'ms_deform_attn', tensors, dict(shapes=sum(LEVELS, ())), flops, 3


CASES = {
    'landmark': lambda: landmark(2, 196, 49, 10, 32, 20),
    'landmark-unmixed': lambda: landmark(1, 63, 7, 3, 8),
    'structure-aware': lambda: structure_aware(2, (7, 5), 4),
    'structure-aware-3d': lambda: structure_aware(1, (2, 3, 4), 2),
    'masked': lambda: masked((7, 5), 3, 1, False),
    'masked-special': lambda: masked((4, 6), 5, 2, False),
    'masked-inside': lambda: masked((2, 3), 7, 1, False),
    'masked-soft': lambda: masked((7, 5), 3, 1, True),
    'neighborhood': lambda: neighborhood((9, 8)),
    'neighborhood-large': lambda: neighborhood((60, 50)),
    'deformable-dat': lambda: deformable(12, False),
    'deformable-dat++': lambda: deformable(1, True),
    'multi-scale': lambda: multi_scale(False),
    'multi-scale-fused': lambda: multi_scale(True),
}


def test_each_operator_has_a_case():
    assert {case()[0] for case in CASES.values()} == set(OPERATORS)


def counted(operator, tensors, settings, backend, backward, rules=None):
    leaves = [x if x is None else x.detach().requires_grad_() for x in tensors]
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        out = operator(*leaves, backend=backend, **settings)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize('backward', [False, True], ids=['forward', 'backward'])
@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_operator_counts_the_same_on_every_backend(case, backward):
    name, tensors, settings, flops, factor = case()
    operator = OPERATORS[name]
    backends = {*operator.backends, 'reference'} - {*operator.unsupported(*tensors)}
    if name == 'ms_deform_attn':  # PyTorch's grid_sample has no rule
        backends -= {'reference'}
    expected = round(2 * flops * (factor if backward else 1))
    dense = 'masked' in name  # what the definition multiplies, without a rule of ours
    assert len(backends) >= 1
    for backend in backends - ({'reference'} if dense else set()):
        found = counted(operator, tensors, settings, backend, backward)
        assert found == expected, backend
        if dense:
            found = counted(operator, tensors, settings, backend, backward, DENSE_RULES)
            assert found == counted(operator, tensors, settings, 'reference', backward)
