"""The depthwise convolution is `nn.Conv2d`, and so are its gradients."""

from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn.models.layers import DepthwiseConv, depthwise_conv
from mmattn.ops.common import extension
from tools.benchmark.tolerances import assert_close, run_with_grads

CHANNELS = 6


def make(shape, kernel_size, bias=True):
    torch.manual_seed(0)
    conv = DepthwiseConv(CHANNELS, kernel_size, bias=bias)
    return conv, torch.randn(*shape, CHANNELS)


def plain(conv, x, weight, bias=None):
    out = nn.functional.conv2d(
        x.permute(0, 3, 1, 2), weight, bias, padding=conv.padding, groups=CHANNELS
    )
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
    conv, x = make(shape, kernel_size, bias)
    tensors = [x, *(p.detach() for p in conv.parameters())]
    expected, expected_grads = run_with_grads(
        partial(plain, conv), tensors, dtype=torch.float64
    )
    out, grads = run_with_grads(partial(ours, conv), tensors)
    assert len(calls) == (extension.UNAVAILABLE is None and shape[0] > 0)
    assert_close('out', expected, out)
    for name, want, got in zip(
        ('x', 'weight', 'bias'), expected_grads, grads, strict=False
    ):
        assert_close(f'grad of {name}', want, got)


def test_bfloat16_and_autocast(calls):
    conv, x = make((2, 7, 5), 7)
    half = [t.to(torch.bfloat16) for t in (x, conv.weight.data, conv.bias.data)]
    expected, expected_grads = run_with_grads(
        partial(plain, conv), half, dtype=torch.float64
    )
    out, grads = run_with_grads(partial(ours, conv), half)
    tensors = [t.float() for t in half]
    with torch.autocast('cpu', torch.bfloat16):
        cast, cast_grads = run_with_grads(partial(ours, conv), tensors)
    assert len(calls) == 2 * (extension.UNAVAILABLE is None)
    assert cast.dtype == torch.bfloat16
    assert all(grad.dtype == torch.float32 for grad in cast_grads)
    assert_close('out', expected, out, torch.bfloat16)
    assert_close('out under autocast', expected, cast, torch.bfloat16)
    for want, *got in zip(expected_grads, grads, cast_grads, strict=True):
        for grad in got:
            assert_close('grad', want, grad, torch.bfloat16)


def test_compiled_with_padding_of_one_side():
    """As in strips, whose rows are padded already, though these have no gradients."""
    conv, x = make((2, 7, 5), 3)
    tensors = [x, *(p.detach() for p in conv.parameters())]

    def padded(x, weight, bias):
        return depthwise_conv.conv2d(x, weight, bias, 1, (0, 1), len(weight))

    compiled = torch.compile(padded, backend='aot_eager', fullgraph=True)
    expected, expected_grads = run_with_grads(padded, tensors)
    out, grads = run_with_grads(compiled, tensors)
    assert_close('out', expected, out)
    for want, got in zip(expected_grads, grads, strict=True):
        assert_close('grad', want, got)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_residual_adds_the_input(dtype):
    conv, x = make((2, 7, 5), 3)
    tensors = [x, *(p.detach() for p in conv.parameters())]
    expected, expected_grads = run_with_grads(
        lambda x, *args: x + plain(conv, x, *args), tensors, dtype=torch.float64
    )
    conv.residual = True
    out, grads = run_with_grads(partial(ours, conv), [t.to(dtype) for t in tensors])
    assert_close('out', expected, out, dtype)
    for want, got in zip(expected_grads, grads, strict=True):
        assert_close('grad', want, got, dtype)
    with torch.autocast('cpu', torch.bfloat16):
        conv.float().weight.data[:] = 2**-8  # lost beside 1 in bfloat16
        rest = conv(torch.ones_like(x)) - 1 - conv.bias
    assert_close(
        'beside 1',
        torch.full_like(rest[:, 1:-1, 1:-1], 9 / 256),
        rest[:, 1:-1, 1:-1],
        torch.bfloat16,
    )


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
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
    channels = 37
    x, weight, bias = (
        torch.randn(size).to(dtype)
        for size in (
            (*shape, channels),
            (channels, 1, kernel_size, kernel_size),
            (channels,),
        )
    )
    settings = dict(stride=stride, padding=padding)

    def plain(x, weight, bias):
        maps = x.permute(0, 3, 1, 2)
        out = nn.functional.conv2d(maps, weight, bias, groups=channels, **settings)
        return out.permute(0, 2, 3, 1)

    tensors = x, weight, bias
    expected, expected_grads = run_with_grads(plain, tensors, dtype=torch.float64)
    ours = partial(depthwise_conv.depthwise_conv2d, **settings)
    out, grads = run_with_grads(ours, tensors)
    assert_close('out', expected, out)
    for want, got in zip(expected_grads, grads, strict=True):
        assert_close('grad', want, got)


def test_views_of_wider_maps():
    conv, x = make((2, 6, 5), 5)
    wide = torch.cat([x, x, x], -1).requires_grad_()
    conv(wide[..., CHANNELS : 2 * CHANNELS]).square().sum().backward()
    other = x.clone().requires_grad_()
    plain(conv, other, conv.weight, conv.bias).square().sum().backward()
    assert_close('grad', other.grad, wide.grad[..., CHANNELS : 2 * CHANNELS])


def test_second_derivatives(calls):
    conv, x = make((2, 6, 5), 5)
    x.requires_grad_()

    def penalty(function):
        out = function(x, conv.weight, conv.bias).pow(3).sum()
        grads = torch.autograd.grad(out, [x, conv.weight], create_graph=True)
        norm = sum(grad.square().sum() for grad in grads)
        return torch.autograd.grad(norm, [x, conv.weight])

    expected, actual = penalty(partial(plain, conv)), penalty(partial(ours, conv))
    for want, got in zip(expected, actual, strict=True):
        assert_close('second derivative', want, got)


def test_transforms_and_graphs_see_a_convolution(calls):
    conv, x = make((2, 6, 5), 5)
    expected = plain(conv, x, conv.weight, conv.bias)
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
