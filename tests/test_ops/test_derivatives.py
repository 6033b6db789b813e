"""Every operator in forward mode and under torch.func, where kernels have no formula.

All in float64 on the CPU, where each operator has a kernel besides its definition.
"""

import pytest
import torch
from torch.autograd import forward_ad

from mmattn.ops import (
    deformable_attention,
    fused_ms_deform_attn,
    landmark_attention,
    masked_attention,
    ms_deform_attn,
    neighborhood_attention,
    pointwise_linear,
    structure_aware_attention,
)
from mmattn.ops.deformable_attention import torch_impl
from mmattn.ops.ms_deform_attn import interface as ms_deform_interface

B, M, D = 2, 2, 4
GRID, N = (3, 4), 12
LEVELS = [(4, 5), (2, 3)]
QKV = [(B, N, M, D)] * 3
SAMPLES = (B, 3, M, 2, 2)
SQUARE = [(B, 9, M, 3)] * 3


def deformable(q, k, v, positions, table, **backend):
    return deformable_attention(q, k, v, GRID, positions, table, **backend)


def masked(q, k, v, bias, global_bias, **backend):
    return masked_attention(
        q, k, v, GRID, masked_heads=1, bias=bias, global_bias=global_bias, **backend
    )


def masked_fully(q, k, v, bias, **backend):
    return masked_attention(q, k, v, GRID, bias=bias, mask_fill='neg_inf', **backend)


def soft(q, k, v, alpha, **backend):
    return masked_attention(q, k, v, GRID, alpha=alpha.sigmoid(), **backend)


def ms_deform(value, locations, weights, **backend):
    return ms_deform_attn(value, LEVELS, locations.sigmoid(), weights, **backend)


def fused(value, reference, offsets, logits, **backend):
    reference = reference.sigmoid()
    return fused_ms_deform_attn(value, LEVELS, reference, offsets, logits, **backend)


LANDMARKS = [(B, 3, M, D)] * 2
WITH_BACKENDS = {
    'landmark': (landmark_attention, [*QKV, *LANDMARKS]),
    'landmark-mixed': (
        landmark_attention,
        [*QKV, *LANDMARKS, (3, M), (M, 3), (3, M), (M, 3)],
    ),
    'masked': (masked, [*QKV, (1, 3, 3), (1, N, N)]),
    'neg_inf': (masked_fully, [*QKV, (M, 3, 3)]),
    'soft': (soft, [*QKV, (M,)]),
    'structure': (
        structure_aware_attention,
        [*QKV, (D, 3, *GRID), (3, *GRID), (D, 3)],
    ),
    'deformable': (
        deformable,
        [(B, N, M, D), (B, 5, M, D), (B, 5, M, D), (B, 1, 5, 2), (M, 5, 7)],
    ),
    'ms-deform': (ms_deform, [(B, 26, M, D), (*SAMPLES, 2), SAMPLES]),
    'neighborhood': (neighborhood_attention, [(B, 4, 5, M, D)] * 3 + [(M, 5, 5)]),
    'fused': (fused, [(B, 26, M, D), (B, 3, 1, 2), (*SAMPLES, 2), SAMPLES]),
}
CASES = {
    **WITH_BACKENDS,
    'pointwise': (pointwise_linear, [(B, N, 4), (5, 4), (5,)]),
}
every_operator = pytest.mark.parametrize('case', CASES.values(), ids=CASES)
every_backend = pytest.mark.parametrize(
    'case', WITH_BACKENDS.values(), ids=WITH_BACKENDS
)


@pytest.fixture(autouse=True)
def kernels_on_small_inputs(monkeypatch):
    monkeypatch.setattr(torch_impl, 'REFERENCE_PAIRS', 0)


def random(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )


def difference_quotient(operator, inputs, tangents, step=1e-6):
    ahead, behind = (
        operator(*(x + sign * step * t for x, t in zip(inputs, tangents, strict=True)))
        for sign in (1, -1)
    )
    return (ahead - behind) / (2 * step)


def assert_near(actual, expected):
    """As near as difference quotients are."""
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)


@every_operator
def test_jvp(case):
    operator, shapes = case
    inputs, tangents = random(shapes), random(shapes, seed=1)
    expected = difference_quotient(operator, inputs, tangents)
    out, tangent = torch.func.jvp(operator, inputs, tangents)
    torch.testing.assert_close(out, operator(*inputs))
    assert expected.abs().max() > 0.01
    assert_near(tangent, expected)


@pytest.mark.parametrize('leaves', [False, True], ids=['constants', 'leaves'])
@every_operator
def test_each_dual_tensor_alone(case, leaves):
    operator, shapes = case
    inputs, tangents = random(shapes), random(shapes, seed=1)
    for i, tangent in enumerate(tangents):
        only = [t if j == i else torch.zeros_like(t) for j, t in enumerate(tangents)]
        expected = difference_quotient(operator, inputs, only)
        given = [x.clone().requires_grad_(leaves) for x in inputs]
        with forward_ad.dual_level():
            given[i] = forward_ad.make_dual(given[i], tangent)
            actual = forward_ad.unpack_dual(operator(*given)).tangent
            assert actual is not None, i
            assert_near(actual.detach(), expected)


@every_operator
def test_grad_and_vmap(case):
    operator, shapes = case
    samples = [random(shapes, seed) for seed in range(2)]

    def loss(*tensors):
        return operator(*tensors).square().sum()

    def by_autograd(inputs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        return torch.autograd.grad(loss(*leaves), leaves)

    expected = [by_autograd(inputs) for inputs in samples]
    argnums = tuple(range(len(shapes)))
    gradients = torch.func.grad(loss, argnums)
    torch.testing.assert_close(gradients(*samples[0]), expected[0])
    stacks = [torch.stack(x) for x in zip(*samples, strict=True)]
    outs = torch.func.vmap(operator)(*stacks)
    torch.testing.assert_close(outs, torch.stack([operator(*x) for x in samples]))
    actual = torch.func.vmap(gradients)(*stacks)
    stacked = tuple(torch.stack(x) for x in zip(*expected, strict=True))
    torch.testing.assert_close(actual, stacked)


@every_backend
def test_a_named_kernel_refuses(case):
    operator, shapes = case
    inputs, tangents = random(shapes), random(shapes, seed=1)

    def on_kernel(*tensors):
        return operator(*tensors, backend='torch')

    def on_reference(*tensors):
        return operator(*tensors, backend='reference')

    message = "'torch' supports neither forward-mode .* use None or 'reference'"
    with pytest.raises(ValueError, match=message):
        torch.func.jvp(on_kernel, inputs, tangents)
    with pytest.raises(ValueError, match=message):
        torch.func.grad(lambda *x: on_kernel(*x).sum())(*inputs)
    torch.func.jvp(on_reference, inputs, tangents)
    with forward_ad.dual_level():  # without a dual tensor
        torch.testing.assert_close(on_kernel(*inputs), on_reference(*inputs))


@every_backend
def test_a_tangent_of_the_cotangent_is_not_dropped(case):
    operator, shapes = case
    leaves = [x.requires_grad_() for x in random(shapes)]
    out = operator(*leaves, backend='torch')
    with forward_ad.dual_level():
        grad = forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out))
        with pytest.raises((ValueError, NotImplementedError), match='forward'):
            torch.autograd.grad(out, leaves, grad)


def test_jvp_in_a_compiled_function():
    operator, shapes = CASES['ms-deform']
    inputs, tangents = random(shapes), random(shapes, seed=1)

    def derivative(inputs, tangents):
        return torch.func.jvp(operator, inputs, tangents)[1]

    compiled = torch.compile(derivative, backend='eager', fullgraph=True)
    torch.testing.assert_close(compiled(inputs, tangents), derivative(inputs, tangents))


@pytest.mark.parametrize('name', ['ms-deform', 'fused'])
def test_second_derivatives_of_ms_deform(name):
    operator, shapes = CASES[name]
    leaves = [x.requires_grad_() for x in random(shapes)]

    def on_kernel(*tensors):
        return operator(*tensors, backend='torch')

    assert torch.autograd.gradgradcheck(on_kernel, leaves, fast_mode=True)
    some = [leaves[0], *(x.detach() for x in leaves[1:])]
    assert torch.autograd.gradgradcheck(on_kernel, some, fast_mode=True)


@pytest.mark.parametrize('backend', ['torch', 'reference'])
def test_backward_function_of_ms_deform(backend):
    _, shapes = CASES['ms-deform']
    value, locations, weights = (x.requires_grad_() for x in random(shapes))
    places = locations.sigmoid()
    out = ms_deform_attn(value, LEVELS, places, weights)
    grad = torch.ones_like(out)
    tensors = value, LEVELS, places, weights
    gradients = ms_deform_interface.ms_deform_attn_backward(
        grad, *tensors, backend=backend
    )
    expected = torch.autograd.grad(out, (value, places, weights), grad)
    torch.testing.assert_close(tuple(gradients), expected)
