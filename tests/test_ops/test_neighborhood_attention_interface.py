"""Neighborhood attention's contract: errors, backends, compilation and export."""

import doctest
import importlib

import pytest
import torch
from neighborhood_cases import NAMES, choose_form
from torch._inductor.utils import fresh_inductor_cache

from mmattn.ops import neighborhood_attention, triton_launch
from mmattn.ops.neighborhood_attention import triton_impl
from tools.benchmark.inputs import make_neighborhood_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

FORMS = 'dense', 'stencil'


@pytest.mark.parametrize(
    'position, shape, message',
    [
        (0, (2, 72, 3, 8), r'\(2, 72, 3, 8\)'),
        (1, (2, 9, 7, 3, 8), r'\(2, 9, 7, 3, 8\)'),
        (2, (2, 9, 8, 3, 7), r'\(2, 9, 8, 3, 7\)'),
        (3, (4, 9, 9), r'\(3, 9, 9\), got \(4, 9, 9\)'),
        (3, (3, 9, 13), r'got \(3, 9, 13\)'),
        (3, (3, 7, 7), r'odd K of at least 3, got \(3, 7, 7\)'),
        (3, (3, 1, 1), r'odd K of at least 3, got \(3, 1, 1\)'),
        (3, (9, 9), r'got \(9, 9\)'),
        (3, (3, 17, 17), '9x8 map is smaller than the 9x9 window'),
    ],
)
def test_wrong_shape(position, shape, message):
    inputs = make_neighborhood_inputs()
    inputs[position] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        neighborhood_attention(*inputs)


@pytest.mark.parametrize('shape', [dict(M=0), dict(D=0)])
def test_empty_axis(shape):
    with pytest.raises(ValueError, match='=0'):
        neighborhood_attention(*make_neighborhood_inputs(**shape))


def test_wrong_dtype_and_device():
    q, *rest = make_neighborhood_inputs()
    with pytest.raises(ValueError, match='float16'):
        neighborhood_attention(q.half(), *rest)
    with pytest.raises(ValueError, match='one device'):
        neighborhood_attention(q.to('meta'), *rest)


def test_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match="'triton', 'torch', 'reference'.*got 'cudnn'"):
        neighborhood_attention(*make_neighborhood_inputs(), backend='cudnn')


@pytest.mark.skipif(triton_launch.INTERPRETED, reason='the interpreter runs on the CPU')
def test_backend_that_cannot_run_says_why():
    with pytest.raises(ValueError, match="'triton' cannot run .*CUDA.* on cpu"):
        neighborhood_attention(*make_neighborhood_inputs(), backend='triton')


@pytest.mark.parametrize(
    'shape, message', [(dict(D=129), '129'), (dict(dtype=torch.float64), 'float64')]
)
def test_limits_of_triton(monkeypatch, shape, message):
    monkeypatch.setattr(triton_launch, 'INTERPRETED', True)
    assert message in triton_impl.unsupported(*make_neighborhood_inputs(**shape))


def test_backend_from_the_environment(monkeypatch):
    inputs = make_neighborhood_inputs()
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    q = inputs[0].detach().requires_grad_()
    out = neighborhood_attention(q, *inputs[1:])
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    assert grad.requires_grad  # other backends have no second derivative
    monkeypatch.setenv('MMATTN_BACKEND', 'nonsense')
    with pytest.raises(ValueError, match='nonsense'):
        neighborhood_attention(*inputs)
    neighborhood_attention(*inputs, backend='torch')


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize('form', ['dense', 'stencil', 'tiles'])
def test_opcheck(monkeypatch, form, dtype):
    choose_form(monkeypatch, form)
    inputs = [
        x.detach().requires_grad_() for x in make_neighborhood_inputs(dtype=dtype)
    ]
    torch.library.opcheck(torch.ops.mmattn.neighborhood_attention, (*inputs, 'torch'))
    inputs = [x.detach() for x in inputs]
    out, lse = torch.ops.mmattn.neighborhood_attention(*inputs, 'torch')
    torch.library.opcheck(
        torch.ops.mmattn.neighborhood_attention_backward,
        (out, out, lse, *inputs, 'torch'),
    )


@pytest.mark.parametrize(
    'compiler', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('form', FORMS)
@fresh_inductor_cache()  # the one on disk does not know which form is chosen here
def test_compile_with_dynamic_shapes(monkeypatch, form, compiler):
    choose_form(monkeypatch, form)

    def function(*inputs):
        return neighborhood_attention(*(x * 1.5 for x in inputs))

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=compiler)
    for shape in (dict(grid=(9, 8)), dict(grid=(7, 11), B=3), dict(grid=(5, 5))):
        inputs = make_neighborhood_inputs(**shape)
        expected, expected_grads = run_with_grads(function, inputs)
        out, grads = run_with_grads(compiled, inputs)
        assert_close('out', expected, out)
        for name, e, a in zip(NAMES, expected_grads, grads, strict=True):
            assert_close(f'grad of {name}', e, a)


class Module(torch.nn.Module):
    def forward(self, *inputs):
        return neighborhood_attention(*inputs)


@pytest.mark.parametrize('form', FORMS)
def test_export(monkeypatch, form):
    choose_form(monkeypatch, form)
    batch = {0: torch.export.Dim('B', min=2)}
    program = torch.export.export(
        Module(),
        tuple(make_neighborhood_inputs()),
        dynamic_shapes=((batch, batch, batch, None),),
    )
    inputs = make_neighborhood_inputs(B=5)
    assert_close('out', neighborhood_attention(*inputs), program.module()(*inputs))


@pytest.mark.parametrize('enabled', [True, False])
@pytest.mark.parametrize('form', FORMS)
def test_autocast(monkeypatch, form, enabled):
    choose_form(monkeypatch, form)
    inputs = make_neighborhood_inputs()
    with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
        out, grads = run_with_grads(neighborhood_attention, inputs)
    dtype = torch.bfloat16 if enabled else torch.float32
    assert out.dtype == dtype
    cast = [x.to(dtype) for x in inputs[:3]]
    expected, expected_grads = run_with_grads(
        neighborhood_attention, [*cast, inputs[3]]
    )
    assert torch.equal(expected, out)
    for name, e, a in zip(NAMES, expected_grads, grads, strict=True):
        assert a.dtype == torch.float32
        assert_close(f'grad of {name}', e, a, dtype)


def test_the_example_in_the_docstring_runs():
    module = importlib.import_module('mmattn.ops.neighborhood_attention.interface')
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
