"""The operators of the ablations against loops, against each other, and at borders."""

from itertools import product
from math import prod

import pytest
import torch
from test_structure_aware_attention import normalized

from mmattn.ops import structure_aware_attention
from mmattn.ops.structure_aware_attention import (
    block_toeplitz,
    local_structure_aware_attention,
    pattern_attention,
    relative_attention,
)
from tools.benchmark.inputs import make_structure_aware_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

B, M, D, K = 2, 3, 4, 2
GRIDS = {
    'one token': (1, 1),
    'row': (1, 5),
    'column': (4, 1),
    '2x3': (2, 3),
    'odd 3x5': (3, 5),
    'even 4x4': (4, 4),
}
every_grid = pytest.mark.parametrize('grid', GRIDS.values(), ids=GRIDS)


def draw(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def table_size(grid):
    return tuple(2 * side - 1 for side in grid)


def make_qkv(grid, dtype=torch.float64, B=B, M=M, D=D):
    """Views of one packed tensor, as a projection leaves them."""
    return list(draw(B, prod(grid), 3, M, D, dtype=dtype).unbind(2))


def make_inputs(name, grid, dtype=torch.float64, B=B, M=M, D=D):
    qkv, size = make_qkv(grid, dtype, B, M, D), table_size(grid)
    shapes = {
        'eq9': [size],
        'eq9 per head': [(M, *size)],
        'eq10': [(K, *size), (K, *size), (D, K)],
        'eq11': [(D, K, *size), (K, *size), (D, K)],
        'local': [(D, K, 3, 3), (K, 3, 3), (D, K)],
    }[name]
    return [*qkv, *(draw(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes, 1))]


def operator(name, grid):
    if name == 'local':
        return lambda *inputs: local_structure_aware_attention(*inputs, grid=grid)
    return relative_attention if 'eq9' in name else pattern_attention


every_operator = pytest.mark.parametrize(
    'name', ['eq9', 'eq9 per head', 'eq10', 'eq11', 'local']
)


def by_loops(name, grid, q, k, v, *weights):
    """The equations as they are printed, one number at a time."""
    q, k = normalized(q), normalized(k)
    H, W = grid
    pixels = list(product(range(H), range(W)))
    out = torch.zeros_like(q)

    def weigh(table, i, j):
        """The table's entry for a key or value at j of the query at i, else 0."""
        (y, x), (below, right) = pixels[i], pixels[j]
        center_y, center_x = (side // 2 for side in table.shape)
        row, column = center_y + below - y, center_x + right - x
        if 0 <= row < table.shape[0] and 0 <= column < table.shape[1]:
            return table[row, column]
        return table.new_zeros(())

    for b, m, i in product(range(len(q)), range(M), range(len(pixels))):
        attn = [q[b, i, m] @ k[b, j, m] for j in range(len(pixels))]
        if 'eq9' in name:
            table = weights[0][m] if weights[0].dim() == 3 else weights[0]
            for j, a in enumerate(attn):
                out[b, i, m] += a * weigh(table, i, j) * v[b, j, m]
            continue
        table_a, table_b, bias = weights
        for pattern in range(K):
            p = 0
            for n, c in product(range(len(pixels)), range(D)):
                table = table_a[pattern] if name == 'eq10' else table_a[c, pattern]
                p = p + q[b, i, m, c] * k[b, n, m, c] * weigh(table, i, n)
            out[b, i, m] += p * bias[:, pattern]
            for j in range(len(pixels)):
                out[b, i, m] += p * weigh(table_b[pattern], i, j) * v[b, j, m]
    return out


@every_operator
@every_grid
def test_against_loops(name, grid):
    inputs = make_inputs(name, grid, B=1)
    out = operator(name, grid)(*inputs)
    assert_close('out', by_loops(name, grid, *inputs), out)


@every_operator
def test_gradcheck(name):
    grid = (2, 3)
    inputs = make_inputs(name, grid, B=1, M=2, D=2)
    inputs = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(operator(name, grid), inputs)
    assert torch.autograd.gradgradcheck(operator(name, grid), inputs)


@every_grid
def test_toeplitz_matrices_hold_the_relative_position(grid):
    """Equation 6, whose entries grow to the right and fall downward."""
    rows, columns = table_size(grid)
    matrix = block_toeplitz(torch.arange(rows * columns).view(1, rows, columns))[0]
    for i, j in product(range(prod(grid)), repeat=2):
        row = grid[0] - 1 + j // grid[1] - i // grid[1]
        column = grid[1] - 1 + j % grid[1] - i % grid[1]
        assert matrix[i, j] == row * columns + column


@pytest.mark.parametrize('grid', [(2, 3, 2), (1, 2, 3), (4,)], ids=str)
def test_toeplitz_matrices_of_other_numbers_of_sides(grid):
    size = table_size(grid)
    table = torch.arange(2 * prod(size)).view(2, *size)
    matrix = block_toeplitz(table, dims=len(grid))
    places = list(product(*(range(side) for side in grid)))
    for (i, query), (j, key) in product(enumerate(places), repeat=2):
        entry = tuple(g - 1 + b - a for g, a, b in zip(grid, query, key, strict=True))
        assert torch.equal(matrix[:, i, j], table[(slice(None), *entry)])


@every_grid
@pytest.mark.parametrize('heads', [(), (M,)], ids=['shared', 'per head'])
def test_eq9_of_ones_is_attention_without_softmax(grid, heads):
    q, k, v = make_qkv(grid)
    out = relative_attention(q, k, v, torch.ones(*heads, *table_size(grid)).double())
    q, k, v = (x.transpose(1, 2) for x in (normalized(q), normalized(k), v))
    assert_close('out', ((q @ k.mT) @ v).transpose(1, 2), out)


@every_grid
def test_eq9_is_a_global_convolution_where_all_correlations_are_one(grid):
    """The paper's reading of equation 9, with q = k = a constant direction."""
    table, v = draw(*table_size(grid)), make_qkv(grid)[2]
    q = torch.zeros_like(v)
    q[..., 0] = 1e6
    out = relative_attention(q, q, v, table)
    image = v.permute(0, 2, 3, 1).reshape(-1, 1, *grid)
    padding = [side - 1 for side in grid]
    expected = torch.nn.functional.conv2d(image, table[None, None], padding=padding)
    expected = expected.view(B, M, D, -1).permute(0, 3, 1, 2)
    assert_close('out', expected, out)


@every_grid
def test_eq10_is_eq11_with_a_table_for_all_channels(grid):
    q, k, v, table_a, table_b, bias = make_inputs('eq10', grid)
    expected, grads = run_with_grads(
        lambda *x: pattern_attention(*x[:3], x[3].expand(D, *x[3].shape), *x[4:]),
        (q, k, v, table_a, table_b, bias),
    )
    out, own = run_with_grads(pattern_attention, (q, k, v, table_a, table_b, bias))
    assert_close('out', expected, out)
    for i, (e, a) in enumerate(zip(grads, own, strict=True)):
        assert_close(f'gradient {i}', e, a)


def periodic_table(w, grid):
    """The kernel is circular; its taps count from the value to the query."""
    for dim, side in ((-2, grid[0]), (-1, grid[1])):
        offsets = torch.arange(side - 1, -side, -1)
        w = w.index_select(dim, offsets.remainder(side))
    return w


@every_grid
@pytest.mark.parametrize('name', ['eq10', 'eq11'])
def test_periodic_tables_give_structure_aware_attention(name, grid):
    inputs = make_structure_aware_inputs(
        grid=grid, B=B, M=M, D=D, K=K, dtype=torch.float64
    )
    if name == 'eq10':
        inputs[3] = inputs[3][:1].expand(D, -1, -1, -1)

    def through_tables(q, k, v, w_a, w_b, bias):
        table_a, table_b = (periodic_table(w, grid) for w in (w_a, w_b))
        if name == 'eq10':
            table_a = table_a.mean(0)  # all are the same
        return pattern_attention(q, k, v, table_a, table_b, bias)

    wanted = [True] * 3 + [name == 'eq11'] + [True] * 2
    expected, grads = run_with_grads(
        lambda *x: structure_aware_attention(*x, backend='reference'), inputs, wanted
    )
    out, own = run_with_grads(through_tables, inputs, wanted)
    assert_close('out', expected, out)
    for i, (e, a) in enumerate(zip(grads, own, strict=True)):
        if e is not None:
            assert_close(f'gradient {i}', e, a)


@every_grid
def test_local_kernels_as_large_as_the_tables_are_eq11(grid):
    inputs = make_inputs('eq11', grid)
    expected, grads = run_with_grads(pattern_attention, inputs)
    out, own = run_with_grads(operator('local', grid), inputs)
    assert_close('out', expected, out)
    for i, (e, a) in enumerate(zip(grads, own, strict=True)):
        assert_close(f'gradient {i}', e, a)


def test_larger_local_kernels_reach_beyond_the_border_in_vain():
    inputs = make_inputs('eq11', (2, 3))
    padded = list(inputs)
    for i in (3, 4):
        padded[i] = torch.nn.functional.pad(inputs[i], (1, 1, 2, 2), value=7.0)
    out = local_structure_aware_attention(*padded, grid=(2, 3))
    assert_close('out', pattern_attention(*inputs), out)


def test_local_kernels_see_zeros_beyond_the_border():
    """Values all one: an output counts the taps that lie on the grid."""
    q = torch.ones(1, 12, 1, 1).double()
    w_a = torch.zeros(1, 1, 3, 3).double()
    w_a[..., 1, 1] = 1  # the pattern is q . k of the pixel itself, which is 1
    w_b, bias = torch.ones(1, 3, 3).double(), torch.zeros(1, 1).double()
    out = local_structure_aware_attention(
        1e6 * q, 1e6 * q, q, w_a, w_b, bias, grid=(3, 4)
    )
    taps = torch.tensor([[4, 6, 6, 4], [6, 9, 9, 6], [4, 6, 6, 4]]).double()
    assert_close('out', taps, out.view(3, 4))


@every_operator
def test_channels_of_q_and_k_may_have_any_length(name):
    grid = (3, 4)
    q, k, *rest = make_inputs(name, grid)
    q, k = 1e6 * q, 1e7 * k  # where the epsilon of the norm is nothing
    scale = 1 + draw(B, 12, M, 1).abs()
    out = operator(name, grid)(q, k, *rest)
    assert_close('out', out, operator(name, grid)(q * scale, k / scale, *rest))


@every_operator
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_arithmetic_is_in_float32_under_autocast_too(name, dtype):
    grid = (3, 4)
    inputs = make_inputs(name, grid, dtype)
    out = operator(name, grid)(*inputs)
    assert out.dtype == dtype
    expected = operator(name, grid)(*(x.double() for x in inputs))
    assert_close('out', expected, out)
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(operator(name, grid)(*inputs), out)


def test_batch_may_be_empty():
    for name in ('eq9', 'eq10', 'eq11', 'local'):
        out = operator(name, (2, 3))(*make_inputs(name, (2, 3), B=0))
        assert out.shape == (0, 6, M, D)


WRONG = {
    'tokens of k': ('eq9', 1, (B, 5, M, D), 'one shape'),
    'dims of v': ('eq11', 2, (B, 6, D), 'one shape'),
    'even table': ('eq9', 3, (4, 5), r'\(4, 5\)'),
    'table of another grid': ('eq9', 3, (5, 5), r'H \* W = 6'),
    'table of no grid': ('eq9', 3, (11,), r'\(11,\)'),
    'tables of other heads': ('eq9', 3, (M + 1, 3, 5), rf'\({M}, 2H-1'),
    'two grids': ('eq10', 4, (K, 5, 3), 'one grid'),
    'patterns of table_a': ('eq10', 3, (K + 1, 3, 5), 'table_a'),
    'channels of table_a': ('eq11', 3, (D + 1, K, 3, 5), 'table_a'),
    'heads in table_b': ('eq11', 4, (D, K, 3, 5), 'table_b'),
    'bias': ('eq11', 5, (K, D), 'bias'),
    'bias of one dim': ('local', 5, (K,), 'bias'),
    'even kernel': ('local', 4, (K, 2, 3), 'odd'),
    'kernels of two sizes': ('local', 3, (D, K, 5, 5), 'odd'),
}


@pytest.mark.parametrize('name, index, shape, match', WRONG.values(), ids=WRONG)
def test_wrong_shapes(name, index, shape, match):
    inputs = make_inputs(name, (2, 3))
    inputs[index] = draw(*shape)
    with pytest.raises(ValueError, match=match):
        operator(name, (2, 3))(*inputs)


def test_wrong_grid():
    with pytest.raises(ValueError, match='`grid` must have 6 tokens, got 2x4'):
        operator('local', (2, 4))(*make_inputs('local', (2, 3)))
