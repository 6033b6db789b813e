"""The activation that keeps one map, and the linear layer that is `nn.Linear`."""

import pytest
import torch
from layer_checks import assert_same
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn.models.layers import PointwiseLinear, StarReLU
from mmattn.models.layers.pointwise import _StarReLU
from tools.benchmark.tolerances import assert_close


def star_relu(dtype=torch.float32):
    act = StarReLU().to(dtype)
    nn.init.constant_(act.scale, 0.7)
    nn.init.constant_(act.bias, -0.3)
    return act


def formula(x, scale, bias):
    return scale * x.relu().square() + bias


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize('compiled', [True, False])
def test_star_relu_is_its_formula(dtype, compiled, monkeypatch):
    monkeypatch.setattr('mmattn.models.layers.pointwise.PIECE', 100)
    monkeypatch.setattr('mmattn.ops.common.star_relu.PART', 100)
    if not compiled:
        monkeypatch.setattr('mmattn.ops.common.extension.UNAVAILABLE', 'not built')

    def ours(x, scale, bias):
        parameters = dict(scale=scale, bias=bias)
        return torch.func.functional_call(StarReLU(), parameters, (x,))

    torch.manual_seed(0)  # a sum near 0 would have the error of its terms
    x, act = torch.randn(3, 7, 5, 8, dtype=dtype), star_relu(dtype)
    out, _ = assert_same(formula, ours, [x, act.scale, act.bias], dtype)
    assert out.dtype == dtype
    with torch.no_grad():
        assert_close('out', formula(x.double(), act.scale, act.bias), act(x))


def test_star_relu_of_fake_tensors():
    act = star_relu()
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.no_grad():
            assert act(torch.ones(4)).shape == (4,)
        x = torch.ones(4, requires_grad=True)
        act(x).sum().backward()
        assert x.grad.shape == (4,)


def test_star_relu_gradcheck():
    act = star_relu(torch.float64)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    x = (x + 0.1 * x.sign()).requires_grad_()  # away from the kink
    inputs = x, act.scale, act.bias
    assert torch.autograd.gradcheck(_StarReLU.apply, inputs)
    assert torch.autograd.gradgradcheck(_StarReLU.apply, inputs)
    grads, twice = (
        torch.autograd.grad(_StarReLU.apply(*inputs).sum(), inputs, create_graph=again)
        for again in (False, True)
    )
    torch.testing.assert_close(twice, grads)


def test_exported_star_relu_has_no_power():
    act, x = star_relu(), torch.randn(3, 4)
    program = torch.export.export(act, (x,)).run_decompositions()
    assert not [node for node in program.graph.nodes if 'pow' in str(node.target)]
    assert_close('out', formula(x, act.scale, act.bias), program.module()(x))


def test_star_relu_in_forward_mode_and_func_grad():
    act = star_relu(torch.float64)
    x, tangent = torch.randn(2, 2, 3, 4, dtype=torch.float64)
    expected = 2 * act.scale * x.relu() * tangent
    torch.testing.assert_close(torch.func.jvp(act, (x,), (tangent,))[1], expected)
    gradient = torch.func.grad(lambda x: (act(x) * tangent).sum())(x)
    torch.testing.assert_close(gradient, expected)


def test_star_relu_under_autocast_keeps_the_dtype_of_the_layer_before():
    act, linear = star_relu(), PointwiseLinear(4, 8)
    with torch.autocast('cpu', torch.bfloat16):
        out = act(linear(torch.randn(2, 3, 3, 4)))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert act.scale.grad.dtype == linear.weight.grad.dtype == torch.float32


def test_star_relu_keeps_one_map_for_the_backward():
    act, x = star_relu(), torch.randn(64, 64, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda x: x):
        act(x)
    assert [t.numel() for t in saved] == [x.numel(), 1]
