"""The operators of the ablations against loops, against each other, and at borders."""

from itertools import product
from math import prod

import pytest
import torch

from mmattn.ops import structure_aware_attention
from projects.lisa_ablations.operators import (
    block_toeplitz,
    local_structure_aware_attention,
    pattern_attention,
    relative_attention,
)
from tools.benchmark.inputs import make_structure_aware_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads

B, M, D, K = 2, 3, 4, 2
GRIDS = {'one token': (1, 1), 'row': (1, 5), '2x3': (2, 3), 'even 4x4': (4, 4)}
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


def normalized(x):
    """Divide by the L2 norm with the epsilon of RSA, by the same authors: 1e-6."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


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


@pytest.mark.parametrize('grid', [(2, 3), (1, 5), (2, 3, 2), (4,)], ids=str)
def test_toeplitz_matrices_hold_the_relative_position(grid):
    """Equation 6, whose entries grow to the right and fall downward."""
    size = table_size(grid)
    table = torch.arange(2 * prod(size)).view(2, *size)
    matrix = block_toeplitz(table, dims=len(grid))
    places = list(product(*(range(side) for side in grid)))
    for (i, query), (j, key) in product(enumerate(places), repeat=2):
        entry = tuple(g - 1 + b - a for g, a, b in zip(grid, query, key, strict=True))
        assert torch.equal(matrix[:, i, j], table[(slice(None), *entry)])


def periodic_table(w, grid):
    """The kernel is circular; its taps count from the value to the query."""
    for dim, side in ((-2, grid[0]), (-1, grid[1])):
        offsets = torch.arange(side - 1, -side, -1)
        w = w.index_select(dim, offsets.remainder(side))
    return w


@every_grid
def test_periodic_tables_give_structure_aware_attention(grid):
    inputs = make_structure_aware_inputs(
        grid=grid, B=B, M=M, D=D, K=K, dtype=torch.float64
    )

    def through_tables(q, k, v, w_a, w_b, bias):
        table_a, table_b = (periodic_table(w, grid) for w in (w_a, w_b))
        return pattern_attention(q, k, v, table_a, table_b, bias)

    def definition(*inputs):
        return structure_aware_attention(*inputs, backend='reference')

    expected, expected_grads = run_with_grads(definition, inputs)
    out, grads = run_with_grads(through_tables, inputs)
    assert_close('out', expected, out)
    for e, a in zip(expected_grads, grads, strict=True):
        assert_close('gradient', e, a)


@every_operator
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_arithmetic_is_in_float32_under_autocast_too(name, dtype):
    grid = (3, 4)
    inputs = make_inputs(name, grid, dtype)
    out = operator(name, grid)(*inputs)
    assert out.dtype == dtype
    expected = operator(name, grid)(*(x.double() for x in inputs))
    assert_close('out', expected, out)
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(operator(name, grid)(*inputs), out)
