"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from operator_checks import check_operator
from triton_devices import every_triton

from mmattn.ops import structure_aware_attention
from mmattn.ops.structure_aware_attention import (
    circular_kernel_spectrum,
    triton_impl,
    triton_short,
)
from tools.benchmark.inputs import make_structure_aware_inputs

pytest.importorskip('triton')

NAMES = 'q k v w_a w_b bias'.split()
SHAPES = {
    'one token': dict(grid=(1, 1), B=1, M=1, D=3, K=2),
    'grid 5x14, packed in a tile': dict(grid=(5, 14), B=2, M=1, D=12, K=1),
    'grid 7x5, three patterns': dict(grid=(7, 5), B=2, M=1, D=12, K=3),
    'grid 7x7, one pattern, one head': dict(grid=(7, 7), B=1, M=1, D=5, K=1),
    'grid 8x8, two tiles of heads': dict(grid=(8, 8), B=3, M=22, D=2, K=1),
    'grid 5x17, two blocks of columns': dict(grid=(5, 17), B=1, M=1, D=3, K=3),
    'grid 17x14, rows in two parts': dict(grid=(17, 14), B=1, M=1, D=2, K=2),
    'grid 17x14, three patterns': dict(grid=(17, 14), B=1, M=1, D=3, K=3),
    'grid 33x2, output rows in two parts': dict(grid=(33, 2), B=1, M=1, D=2, K=1),
    'grid 33x2, three patterns': dict(grid=(33, 2), B=1, M=1, D=3, K=3),
    'grid 2x64, columns in two parts': dict(grid=(2, 64), B=1, M=1, D=2, K=2),
    'grid 9': dict(grid=(9,), B=1, M=2, D=3, K=3),
    'grid 5x6, float16': dict(grid=(5, 6), B=1, M=1, D=4, K=2, dtype=torch.float16),
    'grid 17x4, bfloat16': dict(grid=(17, 4), B=1, M=1, D=4, K=2, dtype=torch.bfloat16),
    'grid 17x5, bfloat16': dict(grid=(17, 5), B=1, M=1, D=4, K=2, dtype=torch.bfloat16),
    'grid 10x7, float16': dict(grid=(10, 7), B=1, M=2, D=4, K=2, dtype=torch.float16),
    'grid 14x10, float16': dict(grid=(14, 10), B=1, M=2, D=4, K=2, dtype=torch.float16),
    'grid 70, float16': dict(grid=(70,), B=1, M=2, D=3, K=2, dtype=torch.float16),
    'grid 3x66, cuFFT': dict(grid=(3, 66), B=2, M=1, D=5, K=3),
    'grid 71, cuFFT': dict(grid=(71,), B=1, M=2, D=4, K=2),
    'grid 2x3x5, cuFFT': dict(grid=(2, 3, 5), B=1, M=1, D=4, K=2),
}
GRIDS = {'short': (5, 7), 'small': (5, 13), 'large': (3, 66)}

FULL, HALF = torch.float32, torch.bfloat16
triton = functools.partial(structure_aware_attention, backend='triton')


@pytest.mark.parametrize(
    'grid, channels, patterns, dtype, parts',
    [
        ((64,), 16, 8, FULL, 1),
        ((5, 13), 16, 8, HALF, None),  # of 65 tokens, and odd
        ((14, 14), 16, 8, HALF, 4),
        ((16, 18), 16, 8, HALF, None),
        ((8, 8), 64, 64, HALF, 1),  # matrices of 64 MiB
        ((8, 8), 65, 64, HALF, 2),
        ((8, 8), 65, 64, FULL, None),
    ],
)
def test_grids_that_take_circulant_matrices(grid, channels, patterns, dtype, parts):
    q = torch.empty(0, dtype=dtype, device='meta')
    found = triton_short.parts_of(grid, channels, patterns, q)
    assert (found.P if found else None) == parts


@every_triton('shape', SHAPES)
def test_against_reference(shape, device):
    check_operator(triton, make_structure_aware_inputs(**shape, device=device))


@every_triton('grid', GRIDS)
def test_half_spectra(grid, device):
    """As a module keeps them in eval: not contiguous, a gradient for each."""
    *qkv, w_a, w_b, bias = make_structure_aware_inputs(
        grid=grid, B=1, M=1, D=4, K=2, device=device
    )
    w_a = circular_kernel_spectrum(w_a.transpose(0, 1), grid).transpose(0, 1)
    w_b = circular_kernel_spectrum(w_b, grid).conj().resolve_conj().conj()

    def function(q, k, v, w_a, w_b, bias, backend='triton'):
        w_a, w_b = torch.view_as_complex(w_a), torch.view_as_complex(w_b)
        return structure_aware_attention(
            q, k, v, w_a, w_b.conj(), bias, grid=grid, backend=backend
        )

    halves = map(torch.view_as_real, (w_a, w_b.conj().resolve_conj()))
    check_operator(function, [*qkv, *halves, bias])


@every_triton('programs', {'one': 1, 'one for each head': 1000})
def test_split_of_sums_over_heads(monkeypatch, programs, device):
    """All heads in one program, and each in one of its own."""
    monkeypatch.setattr(triton_impl, 'TARGET_PROGRAMS', programs)
    check_operator(
        triton,
        make_structure_aware_inputs(grid=(5, 13), B=1, M=2, D=2, K=2, device=device),
    )
