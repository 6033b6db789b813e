"""Structure-aware attention on the CPU: its definition, oracles and `cpu` backend."""

from functools import partial
from itertools import product

import pytest
import torch
from compiled_extension import by_compiled, by_cpu_backend
from operator_checks import (
    check_decomposition,
    check_operator,
    every_case,
    supported,
    threads,
)

from mmattn.ops import structure_aware_attention
from mmattn.ops.structure_aware_attention import (
    cpp_impl,
    structure_aware_attention_circulant,
    torch_impl,
)
from tools.benchmark.inputs import make_structure_aware_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

SHAPES = {
    'one token': dict(grid=(1,)),
    'two tokens': dict(grid=(2,), M=2),
    'tokens 63 in a row': dict(grid=(63,)),
    'grid 7x5': dict(grid=(7, 5)),
    'prime sides 11x7': dict(grid=(11, 7)),
    'prime tokens 67': dict(grid=(67,), M=4),
    'even 8x10': dict(grid=(8, 10), M=4),
    'column 70x1': dict(grid=(70, 1)),
    'row 1x70': dict(grid=(1, 70)),
    'video 4x3x6': dict(grid=(4, 3, 6), M=2),
    'one head, tiny': dict(grid=(3, 2), M=1),
    'batch 1, many heads': dict(grid=(9, 9), B=1, M=6),
    'odd width': dict(grid=(5, 14), D=5),
    'one pattern': dict(grid=(9, 8), K=1),
    'one of everything': dict(grid=(1,), B=1, M=1, D=1, K=1),
}

COMPILED_SHAPES = SHAPES | {
    'composite 27x35': dict(grid=(27, 35), M=1, D=17),
    'primes in composites 22x26': dict(grid=(22, 26), M=2),
    'powers 16x32': dict(grid=(16, 32), B=1, M=2, D=32),
}


def by(backend):
    return partial(structure_aware_attention, backend=backend)


def normalized(x):
    """Divide by the L2 norm with the epsilon of RSA, by the same authors: 1e-6."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def convolved(x, w):
    """Circular convolution of two grids, as a sum of rolled copies."""
    dims = tuple(range(w.dim()))
    return sum(
        w[offset] * x.roll(offset, dims) for offset in product(*map(range, w.shape))
    )


def by_loops(q, k, v, w_a, w_b, bias):
    B, N, M, D = q.shape
    K, *grid = w_b.shape
    q, k, v = (x.unflatten(1, grid) for x in (normalized(q), normalized(k), v))
    out = torch.zeros_like(v)
    for b, m, i in product(range(B), range(M), range(K)):
        pattern = sum(
            q[b, ..., m, c] * convolved(k[b, ..., m, c], w_a[c, i]) for c in range(D)
        )
        for c in range(D):
            values = convolved(v[b, ..., m, c], w_b[i]) + bias[c, i]
            out[b, ..., m, c] += pattern * values
    return out.flatten(1, -3)


@pytest.mark.parametrize('grid', [(5,), (4, 3), (2, 3, 2)], ids=str)
@pytest.mark.parametrize('name', ['reference', 'torch'])
def test_against_loops(name, grid):
    inputs = make_structure_aware_inputs(grid=grid, M=2, D=3, K=2, dtype=torch.float64)
    assert_close('out', by_loops(*inputs), by(name)(*inputs))


@pytest.mark.parametrize('name', ['reference', 'torch'])
@every_case(shape=SHAPES)
def test_against_circulant_matrices(name, shape, dtype):
    check_operator(
        by(name),
        make_structure_aware_inputs(**shape, dtype=dtype),
        expected=structure_aware_attention_circulant,
    )


@by_compiled
@every_case(shape=COMPILED_SHAPES)
def test_compiled(backend, shape, dtype):
    inputs = make_structure_aware_inputs(**shape, dtype=supported(backend, dtype))
    if len(shape['grid']) > 2:
        with pytest.raises(ValueError, match='at most 2 sides, got 3'):
            by(backend)(*inputs)
    else:
        check_operator(by(backend), inputs)


@by_compiled
@pytest.mark.parametrize('count', [2, 3])
def test_compiled_in_threads(backend, count):
    """Each thread sums gradients of the kernels for some pairs of heads."""
    with threads(count):
        inputs = make_structure_aware_inputs(grid=(5, 6), B=2, M=3, D=5, K=2)
        check_operator(by(backend), inputs)


@by_compiled
def test_compiled_reads_packed_projections(backend):
    """As a module hands them over: views of one tensor, the gradient transposed."""
    q, k, v, *weights = make_structure_aware_inputs(grid=(4, 6), M=3, D=8)
    packed = torch.stack([q, k, v], 2).flatten(3)  # (B, N, 3, C)
    expected, actual = (
        run_with_grads(
            lambda packed, *weights, name=name: by(name)(
                *packed.unflatten(3, (3, 8)).unbind(2), *weights
            ).transpose(1, 3),
            [packed, *weights],
        )
        for name in ('reference', backend)
    )
    assert_close('out', expected[0], actual[0])
    for e, a in zip(expected[1], actual[1], strict=True):
        assert_close('grad', e, a)


@pytest.mark.parametrize('chunk', [1, 1000])
def test_torch_backend_in_several_chunks(monkeypatch, chunk):
    inputs = make_structure_aware_inputs(grid=(3, 4), B=3, M=4, D=3, K=5)
    monkeypatch.setattr(torch_impl, 'CHUNK_ELEMENTS', chunk)
    check_operator(by('torch'), inputs)


@pytest.mark.parametrize('grid', [(7, 5), (6, 4), (9, 8), (70,), (3, 5, 6)], ids=str)
def test_arbitrary_complex_half_spectra(grid):
    """All backends use the part of a spectrum that `irfftn` uses."""
    *qkv, w_a, w_b, bias = make_structure_aware_inputs(grid=grid, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    halves = [
        torch.randn(
            *w.shape[:-1], grid[-1] // 2 + 1, generator=generator, dtype=torch.cdouble
        )
        for w in (w_a, w_b)
    ]
    inputs = [*qkv, *(torch.view_as_real(half) for half in halves), bias]

    def function(q, k, v, w_a, w_b, bias, backend='torch'):
        w_a, w_b = (torch.view_as_complex(w) for w in (w_a, w_b))
        return structure_aware_attention(
            q, k, v, w_a, w_b, bias, grid=grid, backend=backend
        )

    check_operator(function, inputs)
    singles = [x.float() for x in inputs]
    if not cpp_impl.unsupported(*singles):
        check_operator(partial(function, backend='cpp'), singles)


@by_cpu_backend
def test_zero_queries_and_keys_have_finite_gradients(backend):
    q, k, *rest = make_structure_aware_inputs(grid=(7, 5))
    inputs = [torch.zeros_like(q), torch.zeros_like(k), *rest]
    check_operator(by(backend), inputs)


def test_grid_may_be_given_with_kernels():
    inputs = make_structure_aware_inputs(grid=(7, 5))
    expected = structure_aware_attention(*inputs)
    assert torch.equal(expected, structure_aware_attention(*inputs, grid=[7, 5]))


@every_case(narrow=False, shape=SHAPES)
def test_decomposition(shape, dtype):
    """By products with real matrices."""
    check_decomposition('structure_aware_attention', dtype=dtype, **shape)
