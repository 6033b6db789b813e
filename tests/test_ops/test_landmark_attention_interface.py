"""Landmark attention's contract: errors, choice of backend, compilation and export."""

import doctest
import importlib

import pytest
import torch

from mmattn.ops import landmark_attention, triton_launch
from mmattn.ops.landmark_attention import torch_impl, triton_impl
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_landmark_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads


@pytest.mark.parametrize(
    'position, shape, message',
    [
        (0, (2, 63, 24), r'\(2, 63, 24\)'),
        (1, (2, 62, 3, 8), r'\(2, 62, 3, 8\)'),
        (2, (2, 63, 3, 7), r'\(2, 63, 3, 7\)'),
        (3, (2, 9, 4, 8), r'\(2, 9, 4, 8\)'),
        (4, (1, 9, 3, 8), r'\(1, 9, 3, 8\)'),
        (5, (3, 4), r'\(3, 4\)'),
        (6, (3, 4), r'\(3, 4\)'),
        (7, (3,), r'\(3,\)'),
    ],
)
def test_wrong_shape(position, shape, message):
    inputs = make_landmark_inputs(E=3)
    inputs[position] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        landmark_attention(*inputs)


@pytest.mark.parametrize('shape', [dict(N=0), dict(L=0), dict(D=0), dict(M=0)])
def test_empty_axis(shape):
    with pytest.raises(ValueError, match='=0'):
        landmark_attention(*make_landmark_inputs(**shape))


def test_wrong_dtype_device_and_half_a_mixing():
    q, *rest = make_landmark_inputs(E=3)
    with pytest.raises(ValueError, match='float16'):
        landmark_attention(q.half(), *rest)
    with pytest.raises(ValueError, match='one device'):
        landmark_attention(q.to('meta'), *rest)
    with pytest.raises(ValueError, match='`w1_k` and `w2_k` must both'):
        landmark_attention(q, *rest[:-1])


def test_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match="'torch'.*'reference'.*got 'cudnn'"):
        landmark_attention(*make_landmark_inputs(), backend='cudnn')


@pytest.mark.skipif(triton_launch.INTERPRETED, reason='the interpreter runs on the CPU')
def test_backend_that_cannot_run_says_why():
    with pytest.raises(ValueError, match="'triton' cannot run .*CUDA.* on cpu"):
        landmark_attention(*make_landmark_inputs(), backend='triton')


@pytest.mark.parametrize(
    'version, message',
    [('3.5.1', '3.6 or newer, got 3.5.1'), ('3.6.0', None), ('3.10.0+git1', None)],
)
def test_release_of_triton(monkeypatch, version, message):
    monkeypatch.setattr(triton_launch.util, 'find_spec', lambda name: name)
    monkeypatch.setattr(triton_launch.metadata, 'version', lambda name: version)
    reason = triton_launch.reason_without_triton()
    assert reason is None if message is None else message in reason
    monkeypatch.setattr(triton_launch, 'INTERPRETED', True)
    monkeypatch.setattr(triton_launch, 'UNAVAILABLE', reason)
    assert triton_impl.unsupported(*make_landmark_inputs()) == reason


@pytest.mark.parametrize(
    'shape, message',
    [
        (dict(M=33, D=8), '33'),
        (dict(M=2, D=129), '129'),
        (dict(M=2, E=65), '65'),
        (dict(dtype=torch.float64), 'float64'),
    ],
)
def test_limits_of_triton(monkeypatch, shape, message):
    monkeypatch.setattr(triton_launch, 'INTERPRETED', True)
    assert message in triton_impl.unsupported(*make_landmark_inputs(**shape))


@pytest.mark.parametrize('E', [None, 6])
def test_small_maps_with_gradients_take_the_definition(monkeypatch, E):
    inputs = make_landmark_inputs(E=E)
    inputs[4].requires_grad_()
    elements = 2 * (E or 3) * 9 * 63
    for limit, by_kernel in ((elements, False), (elements - 1, True)):
        monkeypatch.setattr(torch_impl, 'REFERENCE_ELEMENTS', limit)
        for backend, expected in ((None, by_kernel), ('torch', True)):
            out = landmark_attention(*inputs, backend=backend)
            assert ('landmark_attention' in type(out.grad_fn).__name__) == expected
    monkeypatch.setattr(torch_impl, 'REFERENCE_ELEMENTS', elements)
    monkeypatch.setenv('MMATTN_BACKEND', 'torch')  # a request, too
    out = landmark_attention(*inputs)
    assert 'landmark_attention' in type(out.grad_fn).__name__


def test_compiled_calls_never_take_the_definition(monkeypatch):
    monkeypatch.setattr(torch_impl, 'REFERENCE_ELEMENTS', 10**9)
    inputs = make_landmark_inputs()
    inputs[0].requires_grad_()
    compiled = torch.compile(landmark_attention, fullgraph=True, backend='eager')
    out = compiled(*inputs)
    assert 'landmark_attention' in type(out.grad_fn).__name__


def test_calls_without_gradients_never_take_the_definition(monkeypatch):
    monkeypatch.setattr(torch_impl, 'REFERENCE_ELEMENTS', 10**9)
    operator, inputs = OPERATORS['landmark_attention'], make_landmark_inputs()
    assert operator.choose(*inputs) == 'torch'
    inputs[0].requires_grad_()
    assert operator.choose(*inputs) == 'reference'
    with torch.no_grad():
        assert operator.choose(*inputs) == 'torch'


def test_backend_from_the_environment(monkeypatch):
    inputs = make_landmark_inputs(E=3)
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    q = inputs[0].detach().requires_grad_()
    out = landmark_attention(q, *inputs[1:])
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    assert grad.requires_grad  # the cpu backend has no second derivative
    monkeypatch.setenv('MMATTN_BACKEND', 'nonsense')
    with pytest.raises(ValueError, match='nonsense'):
        landmark_attention(*inputs)
    landmark_attention(*inputs, backend='torch')


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize('E', [None, 6])
def test_opcheck(E, dtype):
    inputs = make_landmark_inputs(E=E, dtype=dtype, mixing_dtype=dtype)
    inputs = [x if x is None else x.detach().requires_grad_() for x in inputs]
    torch.library.opcheck(torch.ops.mmattn.landmark_attention, (*inputs, 'torch'))
    inputs = [x if x is None else x.detach() for x in inputs]
    out, context, statistics = torch.ops.mmattn.landmark_attention(*inputs, 'torch')
    torch.library.opcheck(
        torch.ops.mmattn.landmark_attention_backward,
        (out, context, statistics, *inputs, 'torch'),
    )


@pytest.mark.parametrize(
    'compiler', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)]
)
def test_compile_with_dynamic_shapes(compiler):
    def function(*inputs):
        return landmark_attention(*(x * 1.5 for x in inputs))

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=compiler)
    for shape in (dict(N=63), dict(N=35, B=3), dict(N=50, L=16)):
        inputs = make_landmark_inputs(E=3, **shape)
        expected, expected_grads = run_with_grads(function, inputs)
        out, grads = run_with_grads(compiled, inputs)
        assert_close('out', expected, out)
        for e, a in zip(expected_grads, grads, strict=True):
            assert_close('grad', e, a)


class Module(torch.nn.Module):
    def forward(self, *inputs):
        return landmark_attention(*inputs)


def test_export():
    N = torch.export.Dim('N', min=2)
    tokens = {1: N}
    program = torch.export.export(
        Module(),
        tuple(make_landmark_inputs(E=3)),
        dynamic_shapes=((tokens, tokens, tokens, *[None] * 6),),
    )
    inputs = make_landmark_inputs(E=3, N=35)
    assert_close('out', landmark_attention(*inputs), program.module()(*inputs))


def test_the_example_in_the_docstring_runs():
    module = importlib.import_module('mmattn.ops.landmark_attention.interface')
    result = doctest.testmod(module)
    assert result.attempted and not result.failed
