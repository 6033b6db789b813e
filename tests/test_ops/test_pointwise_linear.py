"""`pointwise_linear` is `F.linear`, whatever it goes through."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from operator_checks import threads

from mmattn.models.layers import PointwiseLinear
from mmattn.ops import pointwise_linear
from tools.benchmark.tolerances import assert_close, run_with_grads

module = importlib.import_module('mmattn.ops.common.pointwise_linear')
SHAPES = [(63,), (2, 7, 5), (1, 1), (4, 16), (0, 3, 3), (2, 56, 56), ()]


@pytest.fixture(params=[1, 2], ids='{} threads'.format)
def in_threads(request):
    with threads(request.param):
        yield


def imitate_narrow_blas(monkeypatch, tokens=1):
    """Imitate a BLAS without AVX-512, with the least tokens of a convolution."""
    least = dict(tokens=tokens, tokens_on_one_thread=tokens, multiplications=0)
    monkeypatch.setattr(module, 'NARROW_BLAS', True)
    monkeypatch.setattr(module, 'LEAST', {'training': least, 'inference': least})


@pytest.fixture
def narrow_blas(monkeypatch):
    imitate_narrow_blas(monkeypatch)


@pytest.fixture
def called(monkeypatch):
    """List the names of the two functions in the order of their calls."""
    names = []
    for name in ('linear', 'conv2d'):
        function = getattr(F, name)

        def record(*args, name=name, function=function):
            names.append(name)
            return function(*args)

        monkeypatch.setattr(F, name, record)
    return names


def make(shape, dtype, channels=12, out_channels=20):
    generator = torch.Generator().manual_seed(0)
    sizes = [(*shape, channels), (out_channels, channels), (out_channels,)]
    return [torch.randn(size, generator=generator, dtype=dtype) for size in sizes]


@pytest.mark.parametrize('bias', [True, False], ids=['bias', 'no bias'])
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_output_and_gradients(shape, bias, in_threads, narrow_blas):
    tensors = make(shape, torch.float32)[: 3 if bias else 2]
    expected, expected_grads = run_with_grads(F.linear, tensors, dtype=torch.float64)
    out, grads = run_with_grads(pointwise_linear, tensors)
    assert out.is_contiguous()
    assert_close('out', expected, out)
    for name, want, got in zip(
        ('x', 'weight', 'bias'), expected_grads, grads, strict=False
    ):
        assert_close(f'grad of {name}', want, got)


def test_views(in_threads, narrow_blas):
    x, weight, bias = make((4, 6, 8), torch.float32)
    for view in (x.transpose(0, 1), x[:, ::2, 1:7], x[:1].expand(5, -1, -1, -1)):
        out = pointwise_linear(view, weight, bias)
        assert_close('out', F.linear(view, weight, bias), out)


def test_second_derivatives_of_the_convolution(narrow_blas):
    x, weight, bias = make((4, 6), torch.float32)
    x.requires_grad_()

    def penalty(function):
        (grad,) = torch.autograd.grad(
            function(x, weight, bias).pow(3).sum(), x, create_graph=True
        )
        return torch.autograd.grad(grad.pow(2).sum(), x)[0]

    assert_close('grad', penalty(F.linear), penalty(pointwise_linear))


def test_linear_in_other_dtypes_and_in_graphs(narrow_blas, called):
    x, weight, bias = make((8, 8), torch.float32)
    pointwise_linear(x.double(), weight.double(), bias.double())
    with torch.autocast('cpu', torch.float16):
        out, expected = pointwise_linear(x, weight, bias), F.linear(x, weight, bias)
    assert called == ['linear'] * 3
    assert out.dtype == torch.float16
    assert_close('out', expected, out)
    graph = str(torch.export.export(PointwiseLinear(12, 20), (x,)).graph)
    assert 'linear' in graph and 'conv' not in graph


def test_compiles_once_for_changing_sizes(called, monkeypatch):
    """A compiled graph chooses by the sizes of each call."""
    imitate_narrow_blas(monkeypatch, tokens=100)
    torch.compiler.reset()
    compiled = torch.compile(
        pointwise_linear, fullgraph=True, dynamic=True, backend='aot_eager'
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for side, names in ((5, ['linear']), (16, ['conv2d']), (23, ['conv2d'])):
            tensors = make((2, side, side + 1), torch.float32)
            expected, expected_grads = run_with_grads(
                F.linear, tensors, dtype=torch.float64
            )
            called.clear()
            out, grads = run_with_grads(compiled, tensors)
            assert called == names
            assert_close('out', expected, out)
            for want, got in zip(expected_grads, grads, strict=True):
                assert_close('grad', want, got)


def test_linear_of_other_kinds_of_weights(narrow_blas, called):
    class Quantized(torch.Tensor):
        pass

    x, weight, bias = make((8, 8), torch.float32)
    pointwise_linear(x, weight.as_subclass(Quantized), bias)
    assert called == ['linear']


def test_registration(narrow_blas):
    for shape in ((4, 16), (63,)):
        tensors = [x.requires_grad_() for x in make(shape, torch.float32)]
        operator = torch.ops.mmattn.pointwise_linear.default
        torch.library.opcheck(operator, (*tensors, True))
