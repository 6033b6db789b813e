"""Layers by strips of their map are the layers, and split in inference alone."""

import weakref

import pytest
import torch
from backbones import counting_backend
from torch import nn
from torch.autograd import forward_ad

from mmattn.models.backbones.dat_plus_plus import ResidualConvMlp
from mmattn.models.backbones.pvt_v2 import ConvMlp
from mmattn.models.layers import PointwiseMlp, SeparableConv, StarReLU, strips
from tools.benchmark.tolerances import assert_close

C = 6
LAYERS = {
    'pointwise': lambda: PointwiseMlp(C, 4 * C, StarReLU),
    'conv': lambda: ConvMlp(C, 4 * C, relu=True),
    'residual conv': lambda: ResidualConvMlp(C),
    'separable 7x7': lambda: SeparableConv(C, 7),
    'separable 1x1': lambda: SeparableConv(C, 1),
}
every_layer = pytest.mark.parametrize('name', LAYERS)


@pytest.fixture
def calls(monkeypatch):
    """Let a strip have the fewest rows, and count the calls of the last layer."""
    monkeypatch.setattr(strips, 'ELEMENTS', 1)
    counted, linear = [], torch.nn.Linear.__call__
    monkeypatch.setattr(
        nn.Linear, '__call__', lambda *args: counted.append(1) or linear(*args)
    )
    return counted


def make(name):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


@every_layer
@pytest.mark.parametrize('shape', [(2, 31, 5), (1, 27, 1), (3, 13, 7)], ids=str)
@pytest.mark.parametrize('amp', [False, True], ids=['float32', 'autocast'])
def test_strips_are_the_whole(calls, name, shape, amp):
    layer, x = make(name), torch.randn(*shape, C)
    with torch.autocast('cpu', torch.bfloat16, enabled=amp):
        expected = layer(x).detach()
        whole = len(calls)
        with torch.no_grad():
            out = layer(x)
    assert len(calls) > 2 * whole
    assert out.is_contiguous() and out.dtype == expected.dtype
    assert_close('out', expected, out)


@every_layer
def test_empty_batch(calls, name):
    with torch.no_grad():
        assert make(name)(torch.randn(0, 9, 8, C)).shape == (0, 9, 8, C)


@every_layer
def test_whoever_records_gets_the_whole(calls, name):
    layer, x = make(name).requires_grad_(False), torch.randn(1, 20, 5, C)
    layer(x.requires_grad_())
    layer(x.detach())  # a parameter of another layer may need gradients
    assert len(calls) == 2 * 2
    with torch.no_grad():
        torch.func.vmap(layer)(x[None])
        torch.jit.trace(layer, x, check_trace=False)
    assert len(calls) == 4 * 2


@pytest.mark.parametrize('name', ['pointwise', 'conv', 'residual conv'])
@pytest.mark.parametrize('amp', [False, True], ids=['float32', 'autocast'])
def test_backward_computes_the_activation_again(name, amp):
    layer, x = make(name), torch.randn(2, 6, 5, C, requires_grad=True)
    kept, runs = [], []
    layer.act.register_forward_hook(lambda _, __, out: kept.append(weakref.ref(out)))
    layer.fc2.register_forward_hook(lambda *_: runs.append(1))
    with torch.autocast('cpu', torch.bfloat16, enabled=amp):
        out = layer(x)
    assert kept[0]() is None
    out.sum().backward()
    assert len(kept) == 2  # run again
    assert len(runs) == 1  # not run to its end


@pytest.mark.parametrize('name', ['pointwise', 'conv', 'residual conv'])
def test_gradcheck(name):
    layer, x = make(name).double(), torch.randn(1, 3, 2, C, dtype=torch.float64)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(x, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, values, (x,))

    torch.autograd.gradcheck(call, (x.requires_grad_(), *parameters))


@every_layer
def test_tangents_are_kept(calls, name):
    layer, x = make(name), torch.randn(1, 20, 5, C, dtype=torch.float64)
    _, expected = torch.func.jvp(layer.double(), (x,), (x,))
    with torch.no_grad(), forward_ad.dual_level():
        out = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x)))
    assert_close('tangent', expected, out.tangent)


@every_layer
def test_exported_graphs_have_no_strips(calls, name):
    layer, x = make(name).eval(), torch.randn(1, 20, 5, C)
    with torch.no_grad():
        program = torch.export.export(layer, (x,))
    targets = [node.target for node in program.graph.nodes]
    assert targets.count(torch.ops.aten.linear.default) == 2
    assert_close('out', layer(x).detach(), program.module()(x))


@every_layer
@pytest.mark.parametrize('dynamic', [False, True], ids=['one size', 'any size'])
def test_graphs_compiled_for_one_size_have_strips(monkeypatch, name, dynamic):
    monkeypatch.setattr(strips, 'ELEMENTS', 1)
    layer, x = make(name), torch.randn(1, 14, 2, C)
    backend, graphs = counting_backend()
    compiled = torch.compile(layer, backend=backend, dynamic=dynamic, fullgraph=True)
    with torch.no_grad():
        assert_close('out', layer(x), compiled(x))
    (graph,) = graphs
    calls = [node for node in graph.graph.nodes if node.op.startswith('call')]
    assert (sum('linear' in str(x.target) for x in calls) > 2) is not dynamic
