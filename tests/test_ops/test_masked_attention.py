"""Masked attention on the CPU against its definition and two oracles."""

import importlib
from functools import partial
from itertools import product

import pytest
import torch
from compiled_extension import by_compiled, by_cpu_backend
from operator_cases import setup as setup_operator
from operator_checks import assert_equal, check_operator, every_case, supported, threads

from mmattn.ops import masked_attention, neighborhood_mask
from mmattn.ops.common import pieces
from mmattn.ops.masked_attention import decomposition
from tools.benchmark.inputs import make_masked_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

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
    'grid 8x12, in tiles': dict(grid=(8, 12), num_special=0),
    'one head, batch 1': dict(grid=(9, 8), B=1, M=1),
    'odd width of a head': dict(grid=(5, 14), D=5, num_special=0),
    'map inside the mask': dict(grid=(2, 3), kernel_size=7),
    'map of the width of the mask': dict(grid=(3, 3), num_special=0),
    'map lower than the mask': dict(grid=(2, 40), kernel_size=5),
    'one of everything': dict(grid=(1, 1), num_special=0, B=1, M=1, D=1),
}
WIDE_SHAPES = {
    f'heads of {D}': dict(grid=(6, 7), D=D, B=1, M=2) for D in (16, 32, 37, 64, 128)
} | {'three bands': dict(grid=(70, 3), num_special=1, B=1)}
KINDS = {
    'hard': dict(),
    'bias': dict(bias=True),
    'neg_inf': dict(mask_fill='neg_inf'),
    'neg_inf, bias': dict(mask_fill='neg_inf', bias=True),
    'soft': dict(alpha=True),
}
GEOMETRIES = {
    'no special': dict(grid=(4, 5), num_special=0),
    'one special': dict(grid=(5, 3), num_special=1, kernel_size=5),
    'two special': dict(grid=(3, 4), num_special=2),
}
every_kind = pytest.mark.parametrize('kind', KINDS.values(), ids=KINDS)
setup = partial(setup_operator, 'masked_attention')
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


@pytest.mark.parametrize('num_special', [0, 1, 2])
def test_mask(num_special):
    grid = (4, 5)
    mask = neighborhood_mask(grid, 3, num_special)
    N = num_special + 20
    assert mask.shape == (N, N) and mask.dtype == torch.bool
    for i, j in product(range(N), repeat=2):
        offset = offset_of(i, j, grid, num_special)
        assert mask[i, j] == (offset is None or max(map(abs, offset)) <= 1)


@every_case(2, False, kind=KINDS, shape=GEOMETRIES)
def test_against_loops(shape, kind, dtype):
    function, inputs = setup('reference', B=1, M=2, D=3, dtype=dtype, **shape, **kind)
    fill = kind.get('mask_fill', 'zero')
    expected = by_loops(*inputs, mask_fill=fill, **shape)
    assert_close('out', expected, function(*inputs))


@every_case(2, shape=SHAPES, kind=KINDS)
def test_torch_in_tiles(linear, shape, kind, dtype):
    check_operator(*setup('torch', dtype=dtype, **shape, **kind))


def test_gradients_of_tiles_with_queries_that_see_nothing(monkeypatch):
    """The last tile has two columns more than the map, one of them beside no key."""
    monkeypatch.setattr(decomposition, 'DENSE_TOKENS', 0)
    shape = dict(grid=(5, 14), num_special=0, mask_fill='neg_inf')
    check_operator(*setup('torch', **shape))


@every_kind
def test_torch_on_small_maps(kind):
    check_operator(*setup('torch', **kind))


@by_compiled
@every_case(2, shape=SHAPES | WIDE_SHAPES, kind=KINDS)
def test_compiled_backend(backend, shape, kind, dtype):
    dtype = supported(backend, dtype)
    check_operator(*setup(backend, dtype=dtype, **shape, **kind))


@by_compiled
def test_compiled_backend_adds_bands_in_any_number_of_threads(backend):
    shape = dict(grid=(70, 5), num_special=1, B=1, M=1, bias=True)
    function, inputs = setup(backend, **shape)
    results = []
    for count in (1, 3):
        with threads(count):
            results.append(run_with_grads(function, inputs))
    assert_equal(*results)
    check_operator(function, inputs)


@every_kind
@pytest.mark.parametrize('elements', [1, 300, 3000, 30_000])
def test_torch_in_pieces(monkeypatch, linear, elements, kind):
    """Some rows of a head, some heads of an image, some images."""
    monkeypatch.setattr(pieces, 'ELEMENTS', elements)
    shape = dict(grid=(9, 7), B=3, M=5, D=4, kernel_size=5)
    check_operator(*setup('torch', **shape, **kind))


def constant_scores(inputs, score, alternate):
    """Inputs whose scores are `score` exactly, or its negative for odd keys."""
    q, k, v, bias, alpha = inputs
    q, k = torch.zeros_like(q), k.clone()
    q[..., 0] = score * q.shape[-1] ** 0.5
    k[..., 0] = 1
    if alternate:
        k[:, 1::2, :, 0] = -1
    return [q, k, v, bias, alpha]


@by_cpu_backend
@pytest.mark.parametrize(
    'score, alternate',
    [(137.0, False), (-249.0, False), (249.0, True), (1e-4, False)],
    ids=str,
)
@every_kind
def test_extreme_scores(linear, backend, kind, score, alternate):
    function, inputs = setup(backend, grid=(7, 6), D=16, **kind)
    # Where neighbors have no weight and all others one score, alpha's gradient is 0,
    # a sum of terms a hundred times as large as others'.
    alpha_matters = score > -100 or alternate
    inputs = constant_scores(inputs, score, alternate)
    check_operator(function, inputs, [True] * 4 + [alpha_matters])


@by_cpu_backend
def test_soft_mask_where_the_correction_cancels(linear, backend):
    """Scores fall with the distance so fast that alpha raises neighbors most."""
    grid, D = (6, 6), 16
    function, (_, _, v, _, _) = setup(backend, grid=grid, num_special=0, B=1, D=D)
    sides = map(torch.arange, grid)
    y, x = (side.flatten() - 2 for side in torch.meshgrid(*sides, indexing='ij'))
    square, one = x**2 + y**2, torch.ones_like(x)
    q = torch.stack([2 * x, 2 * y, -one, -square - 1], -1) * 10 * D**0.5
    k = torch.stack([x, y, square, one], -1)
    q, k = (
        torch.nn.functional.pad(t, (0, D - 4)).to(v)[None, :, None].expand_as(v)
        for t in (q, k)
    )
    check_operator(function, [q, k, v, None, torch.tensor([0.5, 0.25, 0.75])])


@by_compiled
@pytest.mark.parametrize('token', [0, 4, 17, 34])
def test_nan_stays_in_its_support(backend, token):
    """On maps whose rows are neighbors in memory, corners and edges above all."""
    function, inputs = setup(backend, num_special=0)
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


@pytest.mark.parametrize('name', ['torch', 'reference'])
@pytest.mark.parametrize(
    'masked_heads, indices, soft',
    [
        (0, [], False),
        (2, [0, 1], True),
        (5, [0, 1, 2, 3, 4], False),
        ([4, 1], [1, 4], False),
        ((0, 1, 3), [0, 1, 3], True),
        (None, [0, 1, 2, 3, 4], True),
    ],
    ids=str,
)
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


@pytest.mark.parametrize('name', ['torch', 'reference'])
def test_autocast_casts_mixed_heads(name):
    settings = dict(masked_heads=2, global_bias=torch.randn(1, 36, 36))
    function, inputs = setup(name, bias=True)
    expected = function(*(x.bfloat16() for x in inputs[:3]), *inputs[3:], **settings)
    with torch.autocast('cpu', torch.bfloat16):
        out = function(*inputs, **settings)
    assert out.dtype == torch.bfloat16 and torch.equal(expected, out)
