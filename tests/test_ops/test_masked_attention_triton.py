"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from operator_cases import names_of
from operator_cases import setup as setup_operator
from operator_checks import check_as_near_as_the_definition, check_operator
from triton_devices import every_triton

from mmattn.ops.masked_attention import neighborhood_mask, triton_impl
from tools.benchmark.tolerances import run_with_grads

pytest.importorskip('triton')

NAMES = names_of('masked_attention')
HARD = {
    'one token': dict(grid=(1, 1), num_special=0, B=1, M=1, D=3),
    'one token and a special one': dict(grid=(1, 1), B=1, M=1),
    'grid 7x5, batch 2, heads 2': dict(grid=(7, 5), num_special=0, M=2, bias=True),
    'grid 9x10 in four tiles': dict(grid=(9, 10), num_special=0, B=1, M=1),
    'grid 3x17, two special tokens': dict(
        grid=(3, 17), num_special=2, B=1, M=1, bias=True
    ),
    'row of 9, R 5': dict(grid=(1, 9), num_special=1, kernel_size=5, B=1, M=1),
    'R 7, some see all': dict(
        grid=(5, 4), num_special=1, kernel_size=7, B=1, M=1, bias=True
    ),
    'map smaller than R': dict(
        grid=(2, 3), num_special=2, kernel_size=7, B=1, M=1, D=4
    ),
    'R 1': dict(grid=(3, 3), kernel_size=1, B=1, M=1, D=4, bias=True),
    'width 20': dict(grid=(3, 5), B=1, M=1, D=20),
    'width 96': dict(grid=(2, 9), num_special=1, B=1, M=1, D=96),
    'only special tokens': dict(grid=(0, 4), num_special=3, B=1, M=1, D=4),
}
SOFT = {
    'one token': dict(grid=(1, 1), num_special=0, B=1, M=1, D=3),
    'grid 7x5, batch 2, heads 3': dict(grid=(7, 5)),
    'grid 3x17, two special tokens': dict(grid=(3, 17), num_special=2, B=1, M=1),
    'grid 14x14, R 5': dict(grid=(14, 14), kernel_size=5, B=1, M=2, D=16),
    'row of 150, blocks without neighbors': dict(
        grid=(1, 150), num_special=0, B=1, M=1
    ),
    'map smaller than R': dict(grid=(2, 3), num_special=2, kernel_size=7, B=1, M=1),
    'width 40': dict(grid=(3, 5), B=1, M=1, D=40),
    'width 96': dict(grid=(4, 9), num_special=1, B=1, M=1, D=96),
}
SMALL = dict(grid=(4, 5), B=1, M=1, D=4)
NEAR = dict(grid=(7, 6), mask_fill='neg_inf')

setup = functools.partial(setup_operator, 'masked_attention')


def scores_of(q, k):
    return torch.einsum('bimd,bjmd->bmij', q, k) * q.shape[3] ** -0.5


@every_triton(
    'shape, mask_fill',
    {
        name: (shape, ('zero', 'neg_inf')[i % 2])
        for i, (name, shape) in enumerate(HARD.items())
    },
)
def test_hard_masks_against_reference(shape, mask_fill, device):
    triton, inputs = setup('triton', **shape, device=device, mask_fill=mask_fill)
    check_operator(triton, inputs)


@every_triton('shape', SOFT)
def test_soft_masks_against_reference(shape, device):
    triton, inputs = setup('triton', **shape, alpha=True, device=device)
    check_operator(triton, inputs)


@every_triton('programs', {'one': 1, 'one for each block': 1000})
def test_split_of_sums_over_tokens(monkeypatch, programs, device):
    """All of a special token's row in one program, and in one for each block."""
    monkeypatch.setattr(triton_impl, 'TARGET_PROGRAMS', programs)
    shape = dict(grid=(8, 17), num_special=1, B=1, M=1, D=3)
    triton, inputs = setup('triton', **shape, device=device)
    check_operator(triton, inputs)


@every_triton(
    'level, fill',
    {
        f'{level}, {fill}': (level, fill)
        for level in ('near 137', 'all at -249', 'all near 0')
        for fill in ('zero', 'neg_inf', 'soft')
    },
)
def test_scores_out_of_the_range_of_exp(level, fill, device):
    shape = dict(SMALL, grid=(5, 6), num_special=1)
    shape['mask_fill'] = 'zero' if fill == 'soft' else fill
    triton, (q, k, v, _, alpha) = setup(
        'triton', **shape, alpha=fill == 'soft', device=device
    )
    if level == 'near 137':
        q = q * (137 / scores_of(q, k).abs().amax())
    elif level == 'all at -249':
        q, k = torch.ones_like(q) * 249**0.5, -torch.ones_like(k) * 249**0.5 / 2
    else:
        q = q * 1e-4
    largest = scores_of(q, k).abs().amax()
    check_as_near_as_the_definition(triton, [q, k, v, None, alpha], largest)


@every_triton(
    'where, kind',
    {
        **{f'{where}, neg_inf': (where, NEAR) for where in 'qkv'},
        **{f'{where}, hard': (where, dict(grid=(4, 5))) for where in 'qk'},
        **{f'{where}, soft': (where, dict(grid=(4, 5), alpha=True)) for where in 'qk'},
    },
)
def test_nan_reaches_rows_that_see_it_only(where, kind, device):
    """With the paper's masks v is in a sum over all tokens, and is left out."""
    triton, inputs = setup(
        'triton', num_special=0, B=2, M=1, D=3, **kind, device=device
    )
    clean, clean_grads = run_with_grads(triton, inputs)
    token, index, grid = 8, NAMES.index(where), kind['grid']
    inputs[index] = inputs[index].clone()
    inputs[index][0, token] = float('nan')
    out, grads = run_with_grads(triton, inputs)
    hit = neighborhood_mask(grid, 3, device=device)[token]
    if where == 'q':
        hit = torch.arange(len(hit), device=device) == token
    elif 'alpha' in kind:
        hit = torch.ones_like(hit)
    assert out[0, hit].isnan().all()
    assert torch.equal(out[0, ~hit], clean[0, ~hit])
    for a, c in zip((out, *grads[:3]), (clean, *clean_grads[:3]), strict=True):
        assert torch.equal(a[1], c[1])
        if kind is NEAR:  # nothing outside a closed mask reads or writes the token
            far = ~neighborhood_mask(grid, 5, device=device)[token]
            assert torch.equal(a[0, far], c[0, far])
