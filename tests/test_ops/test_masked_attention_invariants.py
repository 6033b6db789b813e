"""Properties of masked attention on the CPU, whatever the numbers are."""

import importlib

import pytest
import torch
from masked_cases import every_kind, setup
from operator_checks import check_operator

from mmattn.ops import masked_attention, neighborhood_mask
from mmattn.ops.masked_attention import torch_soft
from tools.benchmark.inputs import make_masked_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

reference = importlib.import_module('mmattn.ops.masked_attention.reference')


def plain_attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize('name', ['torch', 'reference'])
def test_alpha_of_one_is_plain_attention(linear, name):
    function, (q, k, v, _, alpha) = setup(name, alpha=True, dtype=torch.float64)
    out = function(q, k, v, None, torch.ones_like(alpha))
    assert_close('out', plain_attention(q, k, v), out)


@pytest.mark.parametrize('name', ['torch', 'reference'])
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
        'torch',
        grid=grid,
        kernel_size=2 * max(grid) - 1,
        mask_fill=mask_fill,
        dtype=torch.float64,
    )
    assert_close('out', plain_attention(q, k, v), function(q, k, v, None, None))


@every_kind
def test_scores_of_zero_average(linear, kind):
    function, (q, k, v, bias, alpha) = setup('torch', dtype=torch.float64, **kind)
    bias = None if bias is None else torch.zeros_like(bias)
    out = function(torch.zeros_like(q), k, v, bias, alpha)
    mask = neighborhood_mask((7, 5), 3, 1)
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
    function, inputs = setup('torch', grid=(7, 6), D=16, **kind)
    # Where neighbors have no weight and all others one score, alpha's gradient is 0,
    # a sum of terms a hundred times as large as others'.
    alpha_matters = score > -100 or alternate
    inputs = constant_scores(inputs, score, alternate)
    check_operator(function, inputs, [True] * 4 + [alpha_matters])


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_soft_mask_where_the_correction_cancels(monkeypatch, linear, dtype):
    """Scores fall with the distance so fast that alpha raises neighbors most."""
    grid, D = (6, 6), 16
    function, (_, _, v, _, _) = setup(
        'torch', grid=grid, num_special=0, B=1, D=D, dtype=dtype
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
    check_operator(function, inputs)
    monkeypatch.setattr(torch_soft, 'CANCELED', float('inf'))
    with pytest.raises(AssertionError):
        check_operator(function, inputs)


@pytest.mark.parametrize('token', [0, 4, 5, 17, 30, 34])
def test_nan_stays_in_its_support(linear, token):
    """On maps whose rows are neighbors in memory, corners and edges above all."""
    function, inputs = setup('torch', num_special=0)
    mask = neighborhood_mask((7, 5), 3)
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
    function, inputs = setup('torch', grid=(20, 30), B=3, **kind)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (run_with_grads(function, inputs) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first[0], second[0])
    for x, y in zip(first[1], second[1], strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


@pytest.mark.parametrize('name', ['torch', 'reference'])
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
    mask = neighborhood_mask(grid, 3, 1)
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
@pytest.mark.parametrize('name', ['torch', 'reference'])
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
    function, inputs = setup('torch', **kind)
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    present = [x for x in leaves if x is not None]
    out = function(*leaves)
    expected = torch.autograd.grad(out, present, out, retain_graph=True)
    with torch.autocast('cpu', torch.bfloat16):
        grads = torch.autograd.grad(out, present, out)
    assert all(map(torch.equal, expected, grads))
