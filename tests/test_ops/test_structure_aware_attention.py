"""Structure-aware attention on the CPU: its definition, oracles and `cpu` backend."""

from functools import partial
from itertools import product
from math import prod

import pytest
import torch
from largest_tensor import LargestTensor
from operator_checks import (
    check_empty,
    check_expanded_cotangent,
    check_operator,
    check_repeatable,
    every_case_in_float64,
    every_dtype,
)

from mmattn.ops import structure_aware_attention
from mmattn.ops.structure_aware_attention import (
    irfft_grid,
    rfft_grid,
    structure_aware_attention_circulant,
    torch_circulant,
    torch_fft,
    torch_impl,
    torch_products,
)
from tools.benchmark.inputs import make_structure_aware_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

NAMES = 'q k v w_a w_b bias'.split()
SHAPES = {
    'one token': dict(grid=(1,)),
    'one token, three dims': dict(grid=(1, 1, 1), M=2),
    'two tokens': dict(grid=(2,), M=2),
    'tokens 63 in a row': dict(grid=(63,)),
    'tokens 63 as 7x9': dict(grid=(7, 9), M=2),
    'grid 7x5': dict(grid=(7, 5)),
    'grid 6x4': dict(grid=(6, 4), M=2),
    'prime sides 11x7': dict(grid=(11, 7)),
    'prime tokens 67': dict(grid=(67,), M=4),
    'even 8x10': dict(grid=(8, 10), M=4),
    'column 70x1': dict(grid=(70, 1)),
    'row 1x70': dict(grid=(1, 70)),
    'video 3x4x5': dict(grid=(3, 4, 5), M=2),
    'video 4x3x6': dict(grid=(4, 3, 6), M=2),
    'one head': dict(grid=(9, 8), M=1),
    'one head, tiny': dict(grid=(3, 2), M=1),
    'batch 1, many heads': dict(grid=(9, 9), B=1, M=6),
    'odd width': dict(grid=(5, 14), D=5),
    'one pattern': dict(grid=(9, 8), K=1),
    'one pattern, tiny': dict(grid=(4, 4), K=1),
    'one of everything': dict(grid=(1,), B=1, M=1, D=1, K=1),
}

every_shape = pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES.keys())
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


@pytest.mark.parametrize('grid', [(3,), (2, 3), (2, 1, 2)], ids=str)
def test_reference_gradcheck(grid):
    inputs = make_structure_aware_inputs(
        grid=grid, B=1, M=2, D=2, K=2, dtype=torch.float64
    )
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(backend('reference'), inputs)
    assert torch.autograd.gradgradcheck(backend('reference'), inputs)


@pytest.mark.parametrize('grid', [(5,), (4, 3), (2, 3, 2)], ids=str)
@pytest.mark.parametrize('name', ['reference', 'torch'])
def test_against_loops(name, grid):
    inputs = make_structure_aware_inputs(grid=grid, M=2, D=3, K=2, dtype=torch.float64)
    assert_close('out', by_loops(*inputs), backend(name)(*inputs))


@every_shape
def test_reference_against_circulant_matrices(shape):
    inputs = make_structure_aware_inputs(**shape, dtype=torch.float64)
    check_operator(
        backend('reference'), inputs, expected=structure_aware_attention_circulant
    )


@every_case_in_float64(shape=SHAPES)
def test_cpu_backend_against_circulant_matrices(shape, dtype):
    inputs = make_structure_aware_inputs(**shape, dtype=dtype)
    check_operator(
        backend('torch'), inputs, expected=structure_aware_attention_circulant
    )


@every_form
@pytest.mark.parametrize('chunk', [1, 300, 1000])
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


@every_shape
def test_every_form_of_the_cpu_backend(monkeypatch, shape):
    inputs = make_structure_aware_inputs(**shape)
    for form, _ in FORMS.values():
        monkeypatch.setattr(torch_impl, '_form', lambda q, grid, form=form: form)
        check_operator(backend('torch'), inputs)


@every_form
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_weights_in_half_precision(grid, dtype):
    inputs = make_structure_aware_inputs(grid=grid, dtype=dtype, weight_dtype=dtype)
    check_operator(backend('torch'), inputs)


@every_form
def test_views(grid):
    """Expanded, permuted, sliced and reversed views, and an expanded cotangent."""
    q, k, v, w_a, w_b, bias = make_structure_aware_inputs(grid=grid, B=2, M=4)
    views = [
        q[:1, :, :1].expand_as(q),
        k.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
        v.repeat_interleave(2, -1)[..., ::2],
        w_a.movedim(0, -1).contiguous().movedim(-1, 0),
        w_b.transpose(-1, -2).contiguous().transpose(-1, -2),
        bias[:, :1].expand_as(bias),
    ]
    assert not any(x.is_contiguous() for x in views)
    check_operator(backend('torch'), views)
    check_expanded_cotangent(backend('torch'), [q, k, v, w_a, w_b, bias], 2)


@every_form
@pytest.mark.parametrize('name', ['torch', 'reference'])
def test_half_spectra_are_as_good_as_kernels(name, grid):
    *qkv, w_a, w_b, bias = make_structure_aware_inputs(grid=grid, dtype=torch.float64)
    halves = [rfft_grid(w, grid).requires_grad_() for w in (w_a, w_b)]
    kernels = [irfft_grid(half, grid) for half in halves]
    cotangent = torch.randn(qkv[0].shape, dtype=torch.float64)
    expected = structure_aware_attention(*qkv, *kernels, bias, backend=name)
    out = structure_aware_attention(*qkv, *halves, bias, grid=grid, backend=name)
    assert_close('out', expected, out)
    for e, a in zip(
        torch.autograd.grad(expected, halves, cotangent),
        torch.autograd.grad(out, halves, cotangent),
        strict=True,
    ):
        assert a.is_complex()
        assert_close('grad', torch.view_as_real(e), torch.view_as_real(a))


@pytest.mark.parametrize(
    'grid', [(7, 5), (6, 4), (8,), (9, 8), (70,), (3, 5, 6)], ids=str
)
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


@every_form
def test_batch_of_zero(grid):
    inputs = make_structure_aware_inputs(grid=grid, B=0)
    check_empty(backend('torch'), inputs)


@every_form
@pytest.mark.parametrize('wanted', NAMES)
def test_gradient_of_one_input(wanted, grid):
    requires_grad = [name == wanted for name in NAMES]
    inputs = make_structure_aware_inputs(grid=grid)
    check_operator(backend('torch'), inputs, requires_grad)


def test_no_gradient_leaves_no_graph():
    assert not structure_aware_attention(*make_structure_aware_inputs()).requires_grad


@every_form
@every_dtype
def test_large_inputs_stay_finite(dtype, grid):
    q, k, *rest = make_structure_aware_inputs(grid=grid, dtype=dtype)
    out, grads = run_with_grads(backend('torch'), [q * 3000, k * 1e-3, *rest])
    assert all(x.isfinite().all() for x in (out, *grads))


@every_form
def test_zero_queries_and_keys_have_finite_gradients(grid):
    q, k, *rest = make_structure_aware_inputs(grid=grid)
    inputs = [torch.zeros_like(q), torch.zeros_like(k), *rest]
    check_operator(backend('torch'), inputs)


@every_form
def test_nan_stays_in_its_batch_element(grid):
    inputs = make_structure_aware_inputs(grid=grid, B=3)
    clean, clean_grads = run_with_grads(backend('torch'), inputs)
    inputs[1] = inputs[1].clone()
    inputs[1][1, 5] = float('nan')
    out, grads = run_with_grads(backend('torch'), inputs)
    assert out[1].isnan().all()
    for x, expected in zip((out, *grads[:3]), (clean, *clean_grads[:3]), strict=True):
        assert torch.equal(x[::2], expected[::2])


@every_form
def test_two_runs_are_equal(grid):
    inputs = make_structure_aware_inputs(grid=grid, B=3, M=4)
    check_repeatable(backend('torch'), inputs)


@every_form
@pytest.mark.parametrize('name', ['torch', 'reference'])
def test_autocast_changes_nothing(name, grid):
    inputs = make_structure_aware_inputs(grid=grid)
    expected, expected_grads = run_with_grads(backend(name), inputs)

    def under_autocast(*inputs):
        with torch.autocast('cpu', torch.bfloat16):
            return backend(name)(*inputs)

    out, grads = run_with_grads(under_autocast, inputs)
    assert out.dtype == torch.float32
    assert torch.equal(expected, out)
    assert all(map(torch.equal, expected_grads, grads))


@every_form
def test_backward_under_autocast(grid):
    inputs = make_structure_aware_inputs(grid=grid)
    expected = run_with_grads(backend('torch'), inputs)[1]
    with torch.autocast('cpu', torch.bfloat16):
        grads = run_with_grads(backend('torch'), inputs)[1]
    assert all(map(torch.equal, expected, grads))
