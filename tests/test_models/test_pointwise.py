"""The activation that keeps one map, and the linear layer that is `nn.Linear`."""

from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn.models.layers import PointwiseLinear, StarReLU
from mmattn.models.layers.pointwise import _StarReLU
from tools.benchmark.tolerances import assert_close, run_with_grads


def star_relu(scale=0.7, bias=-0.3, dtype=torch.float32):
    act = StarReLU().to(dtype)
    nn.init.constant_(act.scale, scale)
    nn.init.constant_(act.bias, bias)
    return act


def formula(act, x):
    return act.scale * x.relu().square() + act.bias


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16])
def test_star_relu_is_its_formula(dtype):
    act, exact = star_relu(dtype=dtype), star_relu(dtype=torch.float64)
    exact.load_state_dict(act.state_dict())
    x = torch.randn(3, 7, 5, 8, dtype=dtype)
    expected, (expected_grad,) = run_with_grads(
        partial(formula, exact), [x], dtype=torch.float64
    )
    out, (grad,) = run_with_grads(act, [x])
    assert out.dtype == dtype
    assert_close('out', expected, out)
    assert_close('grad', expected_grad, grad)
    with torch.no_grad():
        assert_close('out', expected, act(x.clone()))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('compiled', [True, False])
def test_gradients_of_star_relus_scalars(dtype, compiled, monkeypatch):
    monkeypatch.setattr('mmattn.models.layers.pointwise.PIECE', 100)
    monkeypatch.setattr('mmattn.ops.common.star_relu.PART', 100)
    if not compiled:
        monkeypatch.setattr('mmattn.ops.common.extension.UNAVAILABLE', 'not built')
    act, exact = star_relu(dtype=dtype), star_relu(dtype=torch.float64)
    exact.load_state_dict(act.state_dict())
    x, grad = torch.randn(2, 3, 7, 5, 8, dtype=dtype).abs().unbind()
    act(x).backward(grad)
    formula(exact, x.double()).backward(grad.double())
    for name, parameter in exact.named_parameters():
        assert_close(name, parameter.grad, act.get_parameter(name).grad)


def test_star_relu_of_fake_tensors():
    act = star_relu()
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.no_grad():
            assert act(torch.ones(4)).shape == (4,)
        x = torch.ones(4, requires_grad=True)
        act(x).sum().backward()
        assert x.grad.shape == (4,)


def test_star_relu_gradcheck():
    act = star_relu(dtype=torch.float64)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    x = (x + 0.1 * x.sign()).requires_grad_()  # away from the kink
    inputs = x, act.scale, act.bias
    assert torch.autograd.gradcheck(_StarReLU.apply, inputs)
    assert torch.autograd.gradgradcheck(_StarReLU.apply, inputs)
    grads, twice = (
        torch.autograd.grad(_StarReLU.apply(*inputs).sum(), inputs, create_graph=again)
        for again in (False, True)
    )
    for grad, other in zip(grads, twice, strict=True):
        assert_close('grad', grad, other)


def test_exported_star_relu_has_no_power():
    act, x = star_relu(), torch.randn(3, 4)
    program = torch.export.export(act, (x,)).run_decompositions()
    assert not [node for node in program.graph.nodes if 'pow' in str(node.target)]
    assert_close('out', formula(act, x), program.module()(x))


def test_star_relu_in_forward_mode_and_func_grad():
    act = star_relu(dtype=torch.float64)
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


def test_pointwise_linear_has_the_parameters_of_linear():
    ours, theirs = PointwiseLinear(6, 10), nn.Linear(6, 10)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 3, 6)
    assert_close('out', theirs(x), ours(x))
