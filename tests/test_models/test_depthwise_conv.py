"""The depthwise convolution is `nn.Conv2d`, and so are its gradients."""

from functools import partial

import pytest
import torch
from layer_checks import assert_same
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn.models.layers import DepthwiseConv, depthwise_conv
from mmattn.ops.common import extension
from tools.benchmark.tolerances import assert_close

CHANNELS = 6
every_dtype = pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)


def make(shape, kernel_size, bias=True):
    """Return the layer, and a map and the layer's parameters as tensors."""
    torch.manual_seed(0)
    conv = DepthwiseConv(CHANNELS, kernel_size, bias=bias)
    x = torch.randn(*shape, CHANNELS)
    return conv, [x, *(p.detach() for p in conv.parameters())]


def plain(x, weight, bias=None, **settings):
    settings = dict(padding=weight.shape[-1] // 2) | settings
    x = x.permute(0, 3, 1, 2)
    out = nn.functional.conv2d(x, weight, bias, groups=x.shape[1], **settings)
    return out.permute(0, 2, 3, 1)


def ours(conv, x, weight, bias=None):
    parameters = {'weight': weight} | ({} if bias is None else {'bias': bias})
    return torch.func.functional_call(conv, parameters, (x,))


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of the function with its own gradients."""
    function, counted = depthwise_conv._DepthwiseConv, []

    class Counting(function):
        @staticmethod
        def forward(ctx, *args):
            counted.append(1)
            return function.forward(ctx, *args)

    monkeypatch.setattr(depthwise_conv, '_DepthwiseConv', Counting)
    return counted


@pytest.mark.parametrize(
    'shape, kernel_size, bias',
    [
        ((2, 7, 5), 3, True),
        ((2, 7, 5), 5, False),
        ((1, 1, 1), 7, True),
        ((3, 2, 11), 9, True),
        ((0, 4, 4), 5, True),
    ],
)
def test_output_and_gradients(shape, kernel_size, bias, calls):
    conv, tensors = make(shape, kernel_size, bias)
    assert_same(plain, partial(ours, conv), tensors)
    assert len(calls) == (extension.UNAVAILABLE is None and shape[0] > 0)


@pytest.mark.parametrize('amp', [False, True], ids=['bfloat16', 'autocast'])
def test_bfloat16_and_autocast(amp, calls):
    conv, tensors = make((2, 7, 5), 7)
    dtype = torch.float32 if amp else torch.bfloat16
    tensors = [x.bfloat16().to(dtype) for x in tensors]

    def cast(*tensors):
        with torch.autocast('cpu', torch.bfloat16, enabled=amp):
            return ours(conv, *tensors)

    out, grads = assert_same(plain, cast, tensors, torch.bfloat16)
    assert out.dtype == torch.bfloat16 and {x.dtype for x in grads} == {dtype}
    assert len(calls) == (extension.UNAVAILABLE is None)


def test_compiled_with_padding_of_one_side():
    """As in strips, whose rows are padded already, though these have no gradients."""

    def padded(x, weight, bias):
        return depthwise_conv.conv2d(x, weight, bias, 1, (0, 1), len(weight))

    compiled = torch.compile(padded, backend='aot_eager', fullgraph=True)
    assert_same(padded, compiled, make((2, 7, 5), 3)[1], exact=None)


@every_dtype
def test_residual_adds_the_input(dtype):
    conv, (x, *parameters) = make((2, 7, 5), 3)
    conv.residual = True
    tensors = [t.to(dtype) for t in (x, *parameters)]
    assert_same(lambda x, *p: x + plain(x, *p), partial(ours, conv), tensors, dtype)
    with torch.autocast('cpu', torch.bfloat16):
        conv.weight.data[:] = 2**-8  # lost beside 1 in bfloat16
        rest = (conv(torch.ones_like(x)) - 1 - conv.bias)[:, 1:-1, 1:-1]
    assert_close('beside 1', torch.full_like(rest, 9 / 256), rest, torch.bfloat16)


@every_dtype
@pytest.mark.parametrize(
    'shape, kernel_size, stride, padding',
    [
        ((2, 9, 70), 5, 2, 2),
        ((1, 16, 17), 9, 8, 4),
        ((2, 8, 8), 4, 4, 0),
        ((1, 5, 6), 3, 1, 4),
    ],
)
def test_strides(shape, kernel_size, stride, padding, dtype):
    torch.manual_seed(0)
    sizes = (*shape, 37), (37, 1, kernel_size, kernel_size), (37,)
    tensors = [torch.randn(size).to(dtype) for size in sizes]
    settings = dict(stride=stride, padding=padding)
    strided = partial(depthwise_conv.depthwise_conv2d, **settings)
    assert_same(partial(plain, **settings), strided, tensors)


def test_views_of_wider_maps():
    conv, (x, *parameters) = make((2, 6, 5), 5)
    wide = torch.cat([x, x, x], -1).requires_grad_()
    conv(wide[..., CHANNELS : 2 * CHANNELS]).square().sum().backward()
    other = x.clone().requires_grad_()
    plain(other, *parameters).square().sum().backward()
    assert_close('grad', other.grad, wide.grad[..., CHANNELS : 2 * CHANNELS])


def test_second_derivatives(calls):
    conv, tensors = make((2, 6, 5), 5)

    def penalty(function):
        x, weight, bias = (x.clone().requires_grad_() for x in tensors)
        out = function(x, weight, bias).pow(3).sum()
        grads = torch.autograd.grad(out, [x, weight], create_graph=True)
        norm = sum(grad.square().sum() for grad in grads)
        return torch.autograd.grad(norm, [x, weight])

    for pair in zip(penalty(plain), penalty(partial(ours, conv)), strict=True):
        assert_close('second derivative', *pair)


def test_transforms_and_graphs_see_a_convolution(calls):
    conv, (x, *parameters) = make((2, 6, 5), 5)
    expected = plain(x, *parameters)
    assert_close('vmap', expected, torch.func.vmap(lambda x: conv(x[None])[0])(x))
    tangent = torch.func.jvp(conv, (x,), (x,))[1]
    assert_close('jvp', expected - conv.bias, tangent)
    compiled = torch.compile(conv, fullgraph=True, backend='aot_eager')
    assert_close('compiled', expected, compiled(x))
    conv.double()(x.double())
    with torch.no_grad():
        conv.float()(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        conv(torch.ones(1, 6, 5, CHANNELS))
    assert not calls
