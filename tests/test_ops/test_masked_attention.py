"""Masked attention on the CPU against its definition and two oracles."""

import importlib
from itertools import product

import pytest
import torch
from largest_tensor import LargestTensor
from masked_cases import (
    KINDS,
    NAMES,
    SHAPES,
    every_kind,
    every_shape,
    setup,
)
from operator_checks import (
    check_empty,
    check_expanded_cotangent,
    check_operator,
    every_case_in_float64,
)

from mmattn.ops import neighborhood_mask
from mmattn.ops.masked_attention import torch_impl, torch_planes, torch_soft
from tools.benchmark.tolerances import assert_close

reference = importlib.import_module('mmattn.ops.masked_attention.reference')


def offset_of(i, j, grid, num_special):
    """(y, x) of token j seen from token i; None if one is special."""
    if min(i, j) < num_special:
        return None
    (y_i, x_i), (y_j, x_j) = (divmod(t - num_special, grid[1]) for t in (i, j))
    return y_j - y_i, x_j - x_i


def by_loops(
    q, k, v, bias, alpha, *, grid, kernel_size=3, num_special=1, mask_fill='zero'
):
    B, N, M, D = q.shape
    r, out = kernel_size // 2, torch.zeros_like(v)
    for b, m, i in product(range(B), range(M), range(N)):
        numerator, denominator = torch.zeros_like(v[b, i, m]), 0
        for j in range(N):
            score = q[b, i, m] @ k[b, j, m] / D**0.5
            offset = offset_of(i, j, grid, num_special)
            if offset and max(map(abs, offset)) > r:
                if mask_fill == 'neg_inf':
                    continue
                score = score * (0 if alpha is None else alpha[m])
            elif offset and bias is not None:
                score = score + bias[m, r + offset[0], r + offset[1]]
            numerator = numerator + score.exp() * v[b, j, m]
            denominator = denominator + score.exp()
        out[b, i, m] = numerator / denominator
    return out


def linear_form(mask, bias=None):
    """The hard mask as neighbors' e^score - 1 on top of the sum of all values."""

    def function(q, k, v, *extras):
        scores = torch.einsum('bimd,bjmd->bmij', q, k) / q.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + bias
        excess = scores.expm1() * mask
        values = torch.einsum('bmij,bjmd->bimd', excess, v)
        total = excess.sum(-1).mT.unsqueeze(-1) + mask.shape[-1]
        return (values + v.sum(1, keepdim=True)) / total

    return function


@pytest.mark.parametrize('num_special', [0, 1, 2])
def test_mask(num_special):
    grid = (4, 5)
    mask = neighborhood_mask(grid, 3, num_special)
    N = num_special + 20
    assert mask.shape == (N, N) and mask.dtype == torch.bool
    for i, j in product(range(N), repeat=2):
        offset = offset_of(i, j, grid, num_special)
        assert mask[i, j] == (offset is None or max(map(abs, offset)) <= 1)


def test_mask_of_the_paper():
    """14 x 14 patches and a class token: 5.1 % of the pairs."""
    mask = neighborhood_mask((14, 14), 3, 1)
    assert mask.sum() == 1993 and mask.numel() == 38809
    assert neighborhood_mask((14, 14), 3).sum(1).min() == 4  # corners


@every_kind
def test_reference_gradcheck(kind):
    function, inputs = setup(
        'reference', grid=(2, 4), B=1, M=2, D=2, dtype=torch.float64, **kind
    )
    present = [x.requires_grad_() for x in inputs if x is not None]

    def of_present(*tensors):
        tensors = iter(tensors)
        return function(*(None if x is None else next(tensors) for x in inputs))

    assert torch.autograd.gradcheck(of_present, present)
    assert torch.autograd.gradgradcheck(of_present, present)


@every_kind
@pytest.mark.parametrize('num_special', [0, 1, 2])
@pytest.mark.parametrize('name', ['reference', 'torch'])
def test_against_loops(linear, name, num_special, kind):
    shape = dict(grid=(4, 5), num_special=num_special)
    function, inputs = setup(name, B=1, M=2, D=3, dtype=torch.float64, **shape, **kind)
    fill = kind.get('mask_fill', 'zero')
    expected = by_loops(*inputs, mask_fill=fill, **shape)
    assert_close('out', expected, function(*inputs))


@pytest.mark.parametrize('biased', [False, True], ids=['no bias', 'bias'])
@pytest.mark.parametrize('name', ['reference', 'torch'])
@every_shape
def test_against_the_linear_form(linear, shape, name, biased):
    function, inputs = setup(name, dtype=torch.float64, bias=biased, **shape)
    geometry = shape['grid'], shape.get('num_special', 1)
    mask = neighborhood_mask(geometry[0], shape.get('kernel_size', 3), geometry[1])
    bias = reference.spread_bias(inputs[3], *geometry) if biased else None
    check_operator(
        function,
        inputs,
        [True, True, True, False, False],
        expected=linear_form(mask, bias),
    )


@every_case_in_float64(shape=SHAPES, kind=KINDS)
def test_cpu_backend_in_linear_form(linear, shape, kind, dtype):
    check_operator(*setup('torch', dtype=dtype, **shape, **kind))


@every_case_in_float64(shape=SHAPES, kind=KINDS)
def test_cpu_backend_on_small_maps(shape, kind, dtype):
    check_operator(*setup('torch', dtype=dtype, **shape, **kind))


@every_kind
@pytest.mark.parametrize('elements', [1, 600, 3000])
def test_cpu_backend_in_groups_and_bands(monkeypatch, linear, elements, kind):
    monkeypatch.setattr(torch_planes, 'GROUP_ELEMENTS', elements)
    monkeypatch.setattr(torch_planes, 'BAND_ELEMENTS', elements // 2)
    monkeypatch.setattr(torch_soft, 'CANCELED', 0.3)  # some rows are
    monkeypatch.setattr(torch_soft, 'ROW_ELEMENTS', elements)
    shape = dict(grid=(9, 7), B=3, M=5, D=4, kernel_size=5)
    check_operator(*setup('torch', **shape, **kind))


@pytest.mark.parametrize('kind', [KINDS['hard'], KINDS['neg_inf, bias']], ids=str)
def test_hard_mask_is_linear_in_memory(kind):
    shape = dict(grid=(40, 50), num_special=1, M=2, D=16, kernel_size=3)
    function, inputs = setup('torch', **shape, **kind)
    q, bias = inputs[0], inputs[3]
    fill = kind.get('mask_fill', 'zero')
    stencil = dict(grid=(40, 50), kernel_size=3, num_special=1, mask_fill=fill)
    tensors = *inputs[:3], bias, None
    with LargestTensor() as largest:
        out, lse = torch_impl.forward(*tensors, **stencil)
        torch_impl.backward(out, out, lse, *tensors, **stencil)
    assert q.numel() <= largest.numel <= 1.2 * q.numel()


@every_kind
def test_views(linear, kind):
    """Expanded, permuted and sliced views, and an expanded cotangent."""
    function, (q, k, v, bias, alpha) = setup('torch', M=4, **kind)
    views = [
        q[:1, :, :1].expand_as(q),
        k.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
        v.repeat_interleave(2, -1)[..., ::2],
        None if bias is None else bias.mT.contiguous().mT,
        None if alpha is None else alpha[:1].expand_as(alpha),
    ]
    assert not any(x.is_contiguous() for x in views if x is not None)
    check_operator(function, views)
    check_expanded_cotangent(function, [q, k, v, bias, alpha], 2)


@pytest.mark.parametrize('grid', [(3, 4), (9, 8), (20, 20)], ids=str)
@every_kind
def test_batch_of_zero(grid, kind):
    function, inputs = setup('torch', B=0, grid=grid, **kind)
    check_empty(function, inputs)


@pytest.mark.parametrize('wanted', NAMES)
def test_gradient_of_one_input(linear, wanted):
    kind = dict(alpha=True) if wanted == 'alpha' else dict(bias=True)
    function, inputs = setup('torch', **kind)
    check_operator(function, inputs, [name == wanted for name in NAMES])


def test_no_gradient_leaves_no_graph():
    function, inputs = setup('torch')
    assert not function(*inputs).requires_grad
