"""Every operator in forward mode and under torch.func, where kernels have no formula.

All in float64 on the CPU, where each operator has a kernel besides its definition.
"""

import pytest
import torch
from operator_cases import CASES, LEVELS, cpu_kernels, with_grad
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from mmattn.ops import pointwise_linear
from mmattn.ops.ms_deform_attn import interface as ms_deform_interface
from tools.benchmark.tolerances import assert_close

NAMES = [name for name, case in CASES.items() if not case.repeats]
OTHERS = {'pointwise': (pointwise_linear, [(2, 12, 4), (5, 4), (5,)])}
every_operator = pytest.mark.parametrize('name', [*NAMES, *OTHERS])
every_kernel = pytest.mark.parametrize('name', NAMES)


def random(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )


def setup(name, backend=None, seed=0):
    """Return a function of the tensors that are not None, the tensors, and tangents."""
    if name in OTHERS:
        operator, shapes = OTHERS[name]
        return operator, random(shapes, seed), random(shapes, seed + 1)
    attend, inputs = CASES[name].setup(backend, dtype=torch.float64, seed=seed)
    present = [i for i, x in enumerate(inputs) if x is not None]

    def function(*tensors):
        given = dict(zip(present, tensors, strict=True))
        return attend(*(given.get(i) for i in range(len(inputs))))

    tensors = tuple(inputs[i].contiguous() for i in present)
    return function, tensors, random([x.shape for x in tensors], seed + 1)


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
def test_jvp(name):
    operator, inputs, tangents = setup(name)
    expected = difference_quotient(operator, inputs, tangents)
    out, tangent = torch.func.jvp(operator, inputs, tangents)
    torch.testing.assert_close(out, operator(*inputs))
    assert expected.abs().max() > 0.01
    assert_near(tangent, expected)


@every_operator
def test_each_dual_tensor_alone(name):
    operator, inputs, tangents = setup(name)
    for i, tangent in enumerate(tangents):
        only = [t if j == i else torch.zeros_like(t) for j, t in enumerate(tangents)]
        expected = difference_quotient(operator, inputs, only)
        for leaves in (False, True):
            given = [x.clone().requires_grad_(leaves) for x in inputs]
            with forward_ad.dual_level():
                given[i] = forward_ad.make_dual(given[i], tangent)
                actual = forward_ad.unpack_dual(operator(*given)).tangent
                assert actual is not None, i
                assert_near(actual.detach(), expected)


@every_operator
def test_grad_and_vmap(name):
    operator = setup(name)[0]
    samples = [setup(name, seed=seed)[1] for seed in range(2)]

    def loss(*tensors):
        return operator(*tensors).square().sum()

    def by_autograd(inputs):
        leaves = [x.clone().requires_grad_() for x in inputs]
        return torch.autograd.grad(loss(*leaves), leaves)

    expected = [by_autograd(inputs) for inputs in samples]
    gradients = torch.func.grad(loss, tuple(range(len(samples[0]))))
    torch.testing.assert_close(gradients(*samples[0]), expected[0])
    stacks = [torch.stack(x) for x in zip(*samples, strict=True)]
    outs = torch.func.vmap(operator)(*stacks)
    torch.testing.assert_close(outs, torch.stack([operator(*x) for x in samples]))
    actual = torch.func.vmap(gradients)(*stacks)
    stacked = tuple(torch.stack(x) for x in zip(*expected, strict=True))
    torch.testing.assert_close(actual, stacked)


@every_kernel
def test_a_named_kernel_refuses(name):
    (*_, backend) = cpu_kernels(CASES[name])  # 'torch', which has float64
    on_kernel, inputs, tangents = setup(name, backend)
    on_reference = setup(name, 'reference')[0]
    message = f"'{backend}' supports neither forward-mode .* use None or 'reference'"
    with pytest.raises(ValueError, match=message):
        torch.func.jvp(on_kernel, inputs, tangents)
    with pytest.raises(ValueError, match=message):
        torch.func.grad(lambda *x: on_kernel(*x).sum())(*inputs)
    torch.func.jvp(on_reference, inputs, tangents)
    with forward_ad.dual_level():  # without a dual tensor
        torch.testing.assert_close(on_kernel(*inputs), on_reference(*inputs))


@every_kernel
def test_a_tangent_of_the_cotangent_is_not_dropped(name):
    (*_, backend) = cpu_kernels(CASES[name])  # 'torch', which has float64
    operator, inputs, _ = setup(name, backend)
    leaves = [x.requires_grad_() for x in inputs]
    out = operator(*leaves)
    with forward_ad.dual_level():
        grad = forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out))
        with pytest.raises((ValueError, NotImplementedError), match='forward'):
            torch.autograd.grad(out, leaves, grad)


TINY = {
    'landmark': dict(N=4, D=2, L=3),
    'landmark, mixed heads': dict(N=4, D=2, L=3),
    'masked': dict(grid=(2, 4), D=2),
    'masked, some heads': dict(grid=(2, 3), D=2),
    'masked, neg_inf': dict(grid=(2, 4), D=2),
    'masked, soft': dict(grid=(2, 4), D=2),
    'structure-aware': dict(grid=(2, 3), D=2),
    'deformable': dict(grid=(2, 3), D=2, K=3),
    'deformable, any table': dict(grid=(2, 3), D=2, K=3),
    'ms-deform, offsets in boxes': dict(shapes=((3, 4), (2, 1)), Q=2, D=2),
    'neighborhood': dict(grid=(4, 3), M=1, D=2),
}


def samples_twice() -> bool:
    """Return whether grid_sample has a second derivative, unlike in PyTorch 2.10."""
    image = torch.rand(1, 1, 2, 2, requires_grad=True)
    grid = torch.zeros(1, 1, 1, 2, requires_grad=True)
    sample = torch.nn.functional.grid_sample(image, grid, align_corners=False).sum()
    (first,) = torch.autograd.grad(sample, image, create_graph=True)
    try:
        torch.autograd.grad(first.square().sum(), grid)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize('name', TINY)
def test_gradients_of_the_definition(name):
    """Compare both orders with difference quotients."""
    shape = dict(TINY[name], B=1, dtype=torch.float64)
    function, inputs = CASES[name].setup('reference', **shape)
    leaves = with_grad(inputs)
    assert torch.autograd.gradcheck(function, leaves)
    if 'deform' not in name or samples_twice():
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_jvp_in_a_compiled_function():
    operator, inputs, tangents = setup('ms-deform, locations')

    def derivative(inputs, tangents):
        return torch.func.jvp(operator, inputs, tangents)[1]

    compiled = torch.compile(derivative, backend='eager', fullgraph=True)
    torch.testing.assert_close(compiled(inputs, tangents), derivative(inputs, tangents))


@every_kernel
def test_second_derivatives(name):
    """Compare quotients of a kernel's gradients with the definition's derivatives."""
    on_kernel, inputs, _ = setup(name, 'torch')
    leaves = [x.requires_grad_() for x in inputs]
    some = [leaves[0], *(x.detach() for x in leaves[1:])]
    with sdpa_kernel(SDPBackend.MATH):  # of heads without a mask
        assert torch.autograd.gradgradcheck(on_kernel, leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(on_kernel, some, fast_mode=True)


@pytest.mark.parametrize('backend', ['torch', 'reference'])
def test_backward_function_of_ms_deform(backend):
    attend, inputs, _ = setup('ms-deform, locations', backend)
    leaves = value, points, weights = [x.requires_grad_() for x in inputs]
    out = attend(*leaves)
    expected = torch.autograd.grad(out, leaves, torch.ones_like(out))
    gradients = ms_deform_interface.ms_deform_attn_backward(
        torch.ones_like(out), value, LEVELS, points, weights, backend=backend
    )
    for e, a in zip(expected, gradients, strict=True):
        assert_close('gradient', e, a)
