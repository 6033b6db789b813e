"""A layer that computes its input again has the gradients of one that keeps it."""

import importlib
import weakref

import pytest
import torch
from test_pointwise_linear import imitate_narrow_blas
from torch import nn

from mmattn.models.layers import PointwiseLinear, StarReLU
from mmattn.ops.common.recompute import recomputed
from tools.benchmark.tolerances import assert_close, run_with_grads

module = importlib.import_module('mmattn.ops.common.pointwise_linear')
C = 6
LAYERS = {
    'linear': lambda: PointwiseLinear(C, 4),
    'convolution': lambda: PointwiseLinear(C, 4, bias=False),
}


class Pair(nn.Module):
    """A layer after a norm or an activation, which `again` lets it run again."""

    def __init__(self, before, layer):
        super().__init__()
        self.before, self.layer, self.again = before, layer, True

    def forward(self, x):
        if not self.again:
            return self.layer(self.before(x))
        hidden = recomputed(self.before, x)
        out, kept = self.layer(hidden), weakref.ref(hidden)
        del hidden
        assert kept() is None
        return out


@pytest.fixture(params=LAYERS)
def layer(request, monkeypatch):
    if request.param == 'convolution':
        imitate_narrow_blas(monkeypatch)
    monkeypatch.setattr(module, 'STRIP', 40 * C)
    torch.manual_seed(0)
    return LAYERS[request.param]()


def results(pair, function=run_with_grads):
    """Apply `function` to the pair, which keeps the map and computes it again.

    Parameters have other values than those of the modules, which the backward finds.
    """
    names = [name for name, _ in pair.named_parameters()]
    tensors = [torch.randn(2, 8, 4, C), *map(torch.randn_like, pair.parameters())]

    def call(x, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(pair, values, (x,))

    for pair.again in (False, True):
        yield function(call, tensors)


@pytest.mark.parametrize('amp', [False, True], ids=['float32', 'autocast'])
@pytest.mark.parametrize(
    'before', [lambda: nn.LayerNorm(C), StarReLU], ids=['norm', 'act']
)
def test_gradients(before, layer, amp):
    def call(function, tensors):
        def cast(*tensors):
            with torch.autocast('cpu', torch.bfloat16, enabled=amp):
                return function(*tensors)

        return run_with_grads(cast, tensors)

    (expected, want), (out, got) = results(Pair(before(), layer), call)
    assert_close('out', expected, out)
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert a.dtype == b.dtype
        assert_close(f'grad {i}', a, b, out.dtype)


def test_second_derivatives(layer):
    def penalty(function, tensors):
        tensors = [x.requires_grad_() for x in tensors]
        loss = function(*tensors).pow(3).sum()
        grads = torch.autograd.grad(loss, tensors, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in grads), tensors)

    want, got = results(Pair(nn.LayerNorm(C), layer), penalty)
    for a, b in zip(want, got, strict=True):
        assert_close('grad', a, b)


def test_what_changed_is_not_computed_again(layer):
    x, norm = torch.randn(1, 3, 4, C), nn.LayerNorm(C)
    hidden = recomputed(norm, x)
    layer(hidden.mul_(2)).sum().backward()
    expected, layer.weight.grad = layer.weight.grad, None
    layer(2 * norm(x)).sum().backward()
    assert_close('grad', expected, layer.weight.grad)
    out = layer(recomputed(norm, x))
    with torch.no_grad():
        norm.weight.mul_(2)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        out.sum().backward()


@pytest.mark.parametrize('amp', [False, True], ids=['float32', 'autocast'])
def test_the_backward_takes_the_autocast_of_the_forward(amp):
    seen, norm = [], nn.LayerNorm(C)
    norm.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled('cpu')))
    with torch.autocast('cpu', torch.bfloat16, enabled=amp):
        out = PointwiseLinear(C, 4)(recomputed(norm, torch.randn(1, 3, 4, C)))
    with torch.autocast('cpu', torch.bfloat16, enabled=not amp):
        out.sum().backward()
    assert seen == [amp, amp]
