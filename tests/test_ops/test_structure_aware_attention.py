"""Structure-aware attention on the CPU: its definition, oracles and `cpu` backend."""

from functools import partial
from itertools import product
from math import prod

import compiled_extension
import pytest
import torch
from largest_tensor import LargestTensor
from operator_checks import check_decomposition, check_operator, every_case

from mmattn.ops import structure_aware_attention
from mmattn.ops.structure_aware_attention import (
    cpp_impl,
    rfft_grid,
    structure_aware_attention_circulant,
    torch_circulant,
    torch_fft,
    torch_impl,
    torch_products,
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
compiled = compiled_extension.compiled

FORMS = {
    'circulant': (torch_circulant, (7, 5)),
    'fft': (torch_fft, (9, 8)),
    'products': (torch_products, (7, 6)),
}
every_form = pytest.mark.parametrize('grid', FORMS, indirect=True)


@pytest.fixture
def grid(request, monkeypatch):
    """Make a form that of the `cpu` backend, and return a grid to test it on."""
    form, grid = FORMS[request.param]
    monkeypatch.setattr(torch_impl, '_form', lambda q, grid: form)
    return grid


def backend(name, grid=None):
    return partial(structure_aware_attention, grid=grid, backend=name)


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
    assert_close('out', by_loops(*inputs), backend(name)(*inputs))


@every_case(shape=SHAPES)
def test_every_form_against_circulant_matrices(monkeypatch, shape, dtype):
    check = partial(
        check_operator,
        inputs=make_structure_aware_inputs(**shape, dtype=dtype),
        expected=structure_aware_attention_circulant,
    )
    check(backend('reference'))
    for form, _ in FORMS.values():
        monkeypatch.setattr(torch_impl, '_form', lambda q, grid, form=form: form)
        check(backend('torch'))


@pytest.mark.parametrize('shape', COMPILED_SHAPES.values(), ids=COMPILED_SHAPES)
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('_', [pytest.param('cpp', marks=compiled_extension.NEEDED)])
def test_compiled_forward(compiled, shape, dtype, _):
    inputs = make_structure_aware_inputs(**shape, dtype=dtype)
    if len(shape['grid']) > 2:
        with pytest.raises(ValueError, match='at most 2 sides, got 3'):
            backend('cpp')(*inputs)
    else:
        check_operator(backend('cpp'), inputs)


@every_form
@pytest.mark.parametrize('chunk', [1, 1000])
def test_cpu_backend_in_several_chunks(monkeypatch, grid, chunk):
    inputs = make_structure_aware_inputs(grid=(3, 4), B=3, M=4, D=3, K=5)
    monkeypatch.setattr(torch_impl._form(inputs[0], grid), 'CHUNK_ELEMENTS', chunk)
    check_operator(backend('torch'), inputs)


@pytest.mark.parametrize(
    'form, shapes',
    [
        (torch_circulant, [(8, 7, 7, 2), (2, 5, 5, 60), (2, 3, 8, 8), (2, 49, 3)]),
        (
            torch_products,
            [(8, 7, 7, 6), (8, 14, 14, 6), (1, 14, 32, 48), (4, 2, 7, 7, 12)],
        ),
        (torch_fft, [(8, 14, 14, 5), (8, 15, 14, 6), (1, 14, 33, 48), (9, 70, 1, 12)]),
        (torch_fft, [(2, 65, 48), (4, 3, 5, 7, 12)]),
    ],
    ids=['circulant', 'products', 'fft', 'fft, other sides'],
)
def test_choice_of_the_form(form, shapes):
    for B, *grid, M in shapes:
        q = torch.empty(B, prod(grid), M, 16, device='meta')
        assert torch_impl._form(q, tuple(grid)) is form, (B, grid, M)


@pytest.mark.parametrize(
    'form, grid',
    [(torch_circulant, (4, 4)), (torch_fft, (14, 14)), (torch_products, (14, 14))],
    ids=FORMS,
)
def test_cpu_backend_never_has_a_whole_map(monkeypatch, form, grid):
    monkeypatch.setattr(form, 'CHUNK_ELEMENTS', 1 << 13)
    inputs = make_structure_aware_inputs(grid=grid, B=16, M=4, D=16, K=8)
    halves = [*inputs[:3], *(rfft_grid(w, grid) for w in inputs[3:5]), inputs[5]]
    with LargestTensor() as one_shot:
        backend('reference')(*inputs)
    with LargestTensor() as chunked:
        out, patterns = form.forward(*halves, grid=grid)
        form.backward(out, patterns, *halves, grid=grid)
    assert one_shot.numel >= 8 * inputs[0].numel()
    assert chunked.numel <= 2 * inputs[0].numel()


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
        check_operator(function, singles, backends=['cpp'])


@every_form
def test_large_inputs_stay_finite(grid):
    q, k, *rest = make_structure_aware_inputs(grid=grid, dtype=torch.float16)
    out, grads = run_with_grads(backend('torch'), [q * 3000, k * 1e-3, *rest])
    assert all(x.isfinite().all() for x in (out, *grads))


@every_form
def test_zero_queries_and_keys_have_finite_gradients(grid):
    q, k, *rest = make_structure_aware_inputs(grid=grid)
    inputs = [torch.zeros_like(q), torch.zeros_like(k), *rest]
    check_operator(backend('torch'), inputs)


def test_grid_may_be_given_with_kernels():
    inputs = make_structure_aware_inputs(grid=(7, 5))
    expected = structure_aware_attention(*inputs)
    assert torch.equal(expected, structure_aware_attention(*inputs, grid=[7, 5]))


@every_case(narrow=False, shape=SHAPES)
def test_decomposition(shape, dtype):
    """By products with real matrices."""
    check_decomposition('structure_aware_attention', dtype=dtype, **shape)
