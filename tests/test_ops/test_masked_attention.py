"""Masked attention on the CPU: its definition, oracles and `cpu` backend."""

import importlib
from itertools import product

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn.ops import masked_attention, neighbourhood_mask
from mmattn.ops.masked_attention import cpu_impl, cpu_planes, cpu_soft
from mmattn.ops.testing import assert_close, make_masked_inputs, run_with_grads

reference = importlib.import_module('mmattn.ops.masked_attention.reference')

NAMES = 'q k v bias alpha'.split()
SHAPES = {
    'one token': dict(grid=(1, 1), num_special=0),
    'one patch, class token': dict(grid=(1, 1)),
    'tokens 63 in a row': dict(grid=(1, 63), num_special=0),
    'tokens 63 in a column': dict(grid=(63, 1), num_special=0),
    'tokens 63 and one': dict(grid=(7, 9)),
    'grid 7x5': dict(grid=(7, 5), num_special=0),
    'grid 7x5, two special': dict(grid=(7, 5), num_special=2),
    'grid 9x11, width 5': dict(grid=(9, 11), kernel_size=5),
    'grid 9x11, width 7, two special': dict(grid=(9, 11), kernel_size=7, num_special=2),
    'width 1': dict(grid=(4, 6), kernel_size=1),
    'one head, batch 1': dict(grid=(9, 8), B=1, M=1),
    'odd width of a head': dict(grid=(5, 14), D=5, num_special=0),
    'map inside the mask': dict(grid=(2, 3), kernel_size=7),
    'map of the width of the mask': dict(grid=(3, 3), num_special=0),
    'map lower than the mask': dict(grid=(2, 40), kernel_size=5),
    'one of everything': dict(grid=(1, 1), num_special=0, B=1, M=1, D=1),
}
KINDS = {
    'hard': dict(),
    'bias': dict(bias=True),
    'neg_inf': dict(mask_fill='neg_inf'),
    'neg_inf, bias': dict(mask_fill='neg_inf', bias=True),
    'soft': dict(alpha=True),
}
DTYPES = torch.float64, torch.float32, torch.float16, torch.bfloat16

every_shape = pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES.keys())
every_kind = pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS.keys())
every_dtype = pytest.mark.parametrize('dtype', DTYPES, ids=lambda d: str(d)[6:])


@pytest.fixture
def linear(monkeypatch):
    """Small maps go the way of large ones."""
    monkeypatch.setattr(cpu_impl, 'DENSE_TOKENS', 0)
    monkeypatch.setattr(cpu_impl, 'SOFT_DENSE_TOKENS', 0)


def setup(name, *, mask_fill='zero', **shape):
    """The operator as a function of its five tensors, and these."""
    inputs = make_masked_inputs(**shape)
    stencil = dict(
        grid=shape.get('grid', (7, 5)),
        kernel_size=shape.get('kernel_size', 3),
        num_special=shape.get('num_special', 1),
        mask_fill=mask_fill,
    )

    def function(q, k, v, bias, alpha, backend=name):
        return masked_attention(
            q, k, v, bias=bias, alpha=alpha, backend=backend, **stencil
        )

    return function, inputs


def assert_matches(function, inputs, requires_grad=None, expected_function=None):
    if expected_function is None:

        def expected_function(*inputs):
            return function(*inputs, backend='reference')

    out, grads = run_with_grads(function, inputs, requires_grad)
    expected, expected_grads = run_with_grads(
        expected_function, inputs, requires_grad, dtype=torch.float64
    )
    dtype = inputs[0].dtype
    assert out.dtype == dtype
    assert_close('out', expected, out)
    for name, x, e, a in zip(NAMES, inputs, expected_grads, grads, strict=True):
        assert (a is None) == (e is None), name
        if e is not None:
            assert a.dtype == x.dtype
            assert_close(f'grad of {name}', e, a, dtype)


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
    """The hard mask as neighbours' e^score - 1 on top of the sum of all values."""

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
    mask = neighbourhood_mask(grid, 3, num_special)
    N = num_special + 20
    assert mask.shape == (N, N) and mask.dtype == torch.bool
    for i, j in product(range(N), repeat=2):
        offset = offset_of(i, j, grid, num_special)
        assert mask[i, j] == (offset is None or max(map(abs, offset)) <= 1)


def test_mask_of_the_paper():
    """14 x 14 patches and a class token: 5.1 % of the pairs."""
    mask = neighbourhood_mask((14, 14), 3, 1)
    assert mask.sum() == 1993 and mask.numel() == 38809
    assert neighbourhood_mask((14, 14), 3).sum(1).min() == 4  # corners


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
@pytest.mark.parametrize('name', ['reference', 'cpu'])
def test_against_loops(linear, name, num_special, kind):
    shape = dict(grid=(4, 5), num_special=num_special)
    function, inputs = setup(name, B=1, M=2, D=3, dtype=torch.float64, **shape, **kind)
    fill = kind.get('mask_fill', 'zero')
    expected = by_loops(*inputs, mask_fill=fill, **shape)
    assert_close('out', expected, function(*inputs))


@pytest.mark.parametrize('biased', [False, True], ids=['no bias', 'bias'])
@pytest.mark.parametrize('name', ['reference', 'cpu'])
@every_shape
def test_against_the_linear_form(linear, shape, name, biased):
    function, inputs = setup(name, dtype=torch.float64, bias=biased, **shape)
    geometry = shape['grid'], shape.get('num_special', 1)
    mask = neighbourhood_mask(geometry[0], shape.get('kernel_size', 3), geometry[1])
    bias = reference.spread_bias(inputs[3], *geometry) if biased else None
    assert_matches(
        function,
        inputs,
        [True, True, True, False, False],
        linear_form(mask, bias),
    )


@every_dtype
@every_kind
@every_shape
def test_cpu_backend_in_linear_form(linear, shape, kind, dtype):
    assert_matches(*setup('cpu', dtype=dtype, **shape, **kind))


@every_dtype
@every_kind
@every_shape
def test_cpu_backend_on_small_maps(shape, kind, dtype):
    assert_matches(*setup('cpu', dtype=dtype, **shape, **kind))


@every_kind
@pytest.mark.parametrize('elements', [1, 600, 3000])
def test_cpu_backend_in_groups_and_bands(monkeypatch, linear, elements, kind):
    monkeypatch.setattr(cpu_planes, 'GROUP_ELEMENTS', elements)
    monkeypatch.setattr(cpu_planes, 'BAND_ELEMENTS', elements // 2)
    monkeypatch.setattr(cpu_soft, 'CANCELLED', 0.3)  # some rows are
    monkeypatch.setattr(cpu_soft, 'ROW_ELEMENTS', elements)
    shape = dict(grid=(9, 7), B=3, M=5, D=4, kernel_size=5)
    assert_matches(*setup('cpu', **shape, **kind))


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and 0 not in out.stride():
            self.numel = max(self.numel, out.numel())
        return out


@pytest.mark.parametrize('kind', [KINDS['hard'], KINDS['neg_inf, bias']], ids=str)
def test_hard_mask_is_linear_in_memory(kind):
    shape = dict(grid=(40, 50), num_special=1, M=2, D=16, kernel_size=3)
    function, inputs = setup('cpu', **shape, **kind)
    q, bias = inputs[0], inputs[3]
    fill = kind.get('mask_fill', 'zero')
    stencil = dict(grid=(40, 50), kernel_size=3, num_special=1, mask_fill=fill)
    tensors = *inputs[:3], bias, None
    with LargestTensor() as largest:
        out, lse = cpu_impl.forward(*tensors, **stencil)
        cpu_impl.backward(out, out, lse, *tensors, **stencil)
    assert q.numel() <= largest.numel <= 1.2 * q.numel()


@every_kind
def test_views(linear, kind):
    """Expanded, permuted and sliced views, and an expanded cotangent."""
    function, (q, k, v, bias, alpha) = setup('cpu', M=4, **kind)
    views = [
        q[:1, :, :1].expand_as(q),
        k.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
        v.repeat_interleave(2, -1)[..., ::2],
        None if bias is None else bias.mT.contiguous().mT,
        None if alpha is None else alpha[:1].expand_as(alpha),
    ]
    assert not any(x.is_contiguous() for x in views if x is not None)
    assert_matches(function, views)
    leaf = v.detach().requires_grad_()
    out = function(q, k, leaf, bias, alpha)
    expanded, dense = (
        torch.autograd.grad(out, leaf, cotangent, retain_graph=True)[0]
        for cotangent in (torch.ones(()).expand_as(out), torch.ones_like(out))
    )
    assert torch.equal(expanded, dense)


@pytest.mark.parametrize('grid', [(3, 4), (9, 8), (20, 20)], ids=str)
@every_kind
def test_batch_of_zero(grid, kind):
    function, inputs = setup('cpu', B=0, grid=grid, **kind)
    out, grads = run_with_grads(function, inputs)
    assert out.shape == inputs[0].shape
    for x, grad in zip(inputs, grads, strict=True):
        if x is not None:
            assert grad.shape == x.shape and not grad.any()


@pytest.mark.parametrize('wanted', NAMES)
def test_gradient_of_one_input(linear, wanted):
    kind = dict(alpha=True) if wanted == 'alpha' else dict(bias=True)
    function, inputs = setup('cpu', **kind)
    assert_matches(function, inputs, [name == wanted for name in NAMES])


def test_no_gradient_leaves_no_graph():
    function, inputs = setup('cpu')
    assert not function(*inputs).requires_grad


def plain_attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize('name', ['cpu', 'reference'])
def test_alpha_of_one_is_plain_attention(linear, name):
    function, (q, k, v, _, alpha) = setup(name, alpha=True, dtype=torch.float64)
    out = function(q, k, v, None, torch.ones_like(alpha))
    assert_close('out', plain_attention(q, k, v), out)


@pytest.mark.parametrize('name', ['cpu', 'reference'])
def test_alpha_of_zero_is_a_hard_mask(linear, name):
    function, (q, k, v, _, alpha) = setup(name, alpha=True, dtype=torch.float64)
    cotangent, leaves = torch.randn_like(q), [x.detach().clone() for x in (q, k, v)]
    outs, grads = [], []
    for mask in (None, torch.zeros_like(alpha)):
        leaves = [x.requires_grad_() for x in leaves]
        outs.append(function(*leaves, None, mask))
        grads.append(torch.autograd.grad(outs[-1], leaves, cotangent))
    assert_close('out', *outs)
    for expected, grad in zip(*grads, strict=True):
        assert_close('grad', expected, grad)


@pytest.mark.parametrize('mask_fill', ['zero', 'neg_inf'])
@pytest.mark.parametrize('grid', [(3, 5), (1, 9)], ids=str)
def test_mask_that_has_the_whole_map_is_plain_attention(linear, grid, mask_fill):
    function, (q, k, v, *_) = setup(
        'cpu',
        grid=grid,
        kernel_size=2 * max(grid) - 1,
        mask_fill=mask_fill,
        dtype=torch.float64,
    )
    assert_close('out', plain_attention(q, k, v), function(q, k, v, None, None))


@every_kind
def test_scores_of_zero_average(linear, kind):
    function, (q, k, v, bias, alpha) = setup('cpu', dtype=torch.float64, **kind)
    bias = None if bias is None else torch.zeros_like(bias)
    out = function(torch.zeros_like(q), k, v, bias, alpha)
    mask = neighbourhood_mask((7, 5), 3, 1)
    if kind.get('mask_fill') != 'neg_inf':
        mask = torch.ones_like(mask)
    weights = mask / mask.sum(1, keepdim=True, dtype=torch.float64)
    assert_close('out', torch.einsum('ij,bjmd->bimd', weights, v), out)


def constant_scores(inputs, score, alternate):
    """Inputs whose scores are `score` exactly, or its negative for odd keys."""
    q, k, v, bias, alpha = inputs
    q, k = torch.zeros_like(q), k.clone()
    q[..., 0] = score * q.shape[-1] ** 0.5
    k[..., 0] = 1
    if alternate:
        k[:, 1::2, :, 0] = -1
    return [q, k, v, bias, alpha]


@pytest.mark.parametrize('alternate', [False, True], ids=['one sign', 'both signs'])
@pytest.mark.parametrize('score', [137.0, -137.0, 249.0, -249.0, 1e-4])
@every_kind
def test_extreme_scores(linear, kind, score, alternate):
    function, inputs = setup('cpu', grid=(7, 6), D=16, **kind)
    # Where neighbours have no weight and all others one score, alpha's gradient is 0,
    # a sum of terms a hundred times as large as others'.
    alpha_matters = score > -100 or alternate
    inputs = constant_scores(inputs, score, alternate)
    assert_matches(function, inputs, [True] * 4 + [alpha_matters])


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_soft_mask_where_the_correction_cancels(monkeypatch, linear, dtype):
    """Scores fall with the distance so fast that alpha raises neighbours most."""
    grid, D = (6, 6), 16
    function, (_, _, v, _, _) = setup(
        'cpu', grid=grid, num_special=0, B=1, D=D, dtype=dtype
    )
    sides = map(torch.arange, grid)
    y, x = (side.flatten() - 2 for side in torch.meshgrid(*sides, indexing='ij'))
    square, one = x**2 + y**2, torch.ones_like(x)
    q = torch.stack([2 * x, 2 * y, -one, -square - 1], -1) * 10 * D**0.5
    k = torch.stack([x, y, square, one], -1)
    q, k = (
        torch.nn.functional.pad(t, (0, D - 4)).to(dtype)[None, :, None].expand_as(v)
        for t in (q, k)
    )
    alpha = torch.tensor([0.5, 0.25, 0.75], dtype=dtype)
    inputs = [q, k, v, None, alpha]
    assert_matches(function, inputs)
    monkeypatch.setattr(cpu_soft, 'CANCELLED', float('inf'))
    with pytest.raises(AssertionError):
        assert_matches(function, inputs)


@pytest.mark.parametrize('token', [0, 4, 5, 17, 30, 34])
def test_nan_stays_in_its_support(linear, token):
    """On maps whose rows are neighbours in memory, corners and edges above all."""
    function, inputs = setup('cpu', num_special=0)
    mask = neighbourhood_mask((7, 5), 3)
    for position in range(2):
        broken = [None if x is None else x.clone() for x in inputs]
        broken[position][0, token, 1] = float('nan')
        out, (dq, dk, *_) = run_with_grads(function, broken)
        rows = torch.arange(35) == token
        if position == 1:
            rows = mask[:, token]
        columns = mask[rows].any(0)
        for x, expected in ((out, rows), (dq, rows), (dk, columns)):
            assert torch.equal(x[0, :, 1].isnan().all(-1), expected)
            assert torch.equal(x[0, :, 1].isnan().any(-1), expected)
            assert x[1].isfinite().all() and x[:, :, [0, 2]].isfinite().all()


@every_kind
def test_two_runs_are_equal(linear, kind):
    function, inputs = setup('cpu', grid=(20, 30), B=3, **kind)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (run_with_grads(function, inputs) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first[0], second[0])
    for x, y in zip(first[1], second[1], strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


@pytest.mark.parametrize('name', ['cpu', 'reference'])
@pytest.mark.parametrize(
    'masked_heads, indices',
    [
        (0, []),
        (2, [0, 1]),
        (5, [0, 1, 2, 3, 4]),
        ([4, 1], [1, 4]),
        ((0, 1, 3), [0, 1, 3]),
        (None, [0, 1, 2, 3, 4]),
    ],
    ids=str,
)
@pytest.mark.parametrize('soft', [False, True], ids=['hard', 'soft'])
def test_mixed_heads_against_one_head_at_a_time(name, masked_heads, indices, soft):
    grid, N, M = (7, 5), 36, 5
    q, k, v, *_ = make_masked_inputs(grid=grid, M=M, dtype=torch.float64)
    others = [h for h in range(M) if h not in indices]
    generator = torch.Generator().manual_seed(2)

    def draw(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    local = dict(alpha=draw(len(indices))) if soft else dict(bias=draw(5, 3, 3))
    local = {name: x[: len(indices)] for name, x in local.items()}
    global_bias = draw(len(others), N, N)
    out = masked_attention(
        q,
        k,
        v,
        grid,
        num_special=1,
        masked_heads=masked_heads,
        global_bias=global_bias,
        backend=name,
        **local,
    )
    mask = neighbourhood_mask(grid, 3, 1)
    for h in range(M):
        scores = q[:, :, h] @ k[:, :, h].mT / q.shape[-1] ** 0.5
        if h in indices:
            extra = {name: x[[indices.index(h)]] for name, x in local.items()}
            if soft:
                scores = torch.where(mask, scores, extra['alpha'] * scores)
            else:
                scores = (scores + reference.spread_bias(extra['bias'], grid, 1)) * mask
        else:
            scores = scores + global_bias[others.index(h)]
        assert_close(f'head {h}', scores.softmax(-1) @ v[:, :, h], out[:, :, h])


@every_kind
@pytest.mark.parametrize('name', ['cpu', 'reference'])
def test_autocast_casts_to_its_dtype(linear, name, kind):
    function, inputs = setup(name, **kind)
    cast = [x.bfloat16() for x in inputs[:3]] + inputs[3:]
    expected = function(*cast)
    with torch.autocast('cpu', torch.bfloat16):
        out = function(*inputs)
    assert out.dtype == torch.bfloat16
    assert torch.equal(expected, out)


@every_kind
def test_backward_under_autocast(linear, kind):
    function, inputs = setup('cpu', **kind)
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    present = [x for x in leaves if x is not None]
    out = function(*leaves)
    expected = torch.autograd.grad(out, present, out, retain_graph=True)
    with torch.autocast('cpu', torch.bfloat16):
        grads = torch.autograd.grad(out, present, out)
    assert all(map(torch.equal, expected, grads))
