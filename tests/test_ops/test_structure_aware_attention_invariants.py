"""Structure-aware attention of inputs whose answer is known."""

import pytest
import torch
from test_structure_aware_attention import normalized
from torch.nn import functional as F

from mmattn.ops import structure_aware_attention
from mmattn.ops.structure_aware_attention import attention_kernels
from tools.benchmark.inputs import make_structure_aware_inputs
from tools.benchmark.tolerances import assert_close

every_case = pytest.mark.parametrize(
    'name, grid',
    [
        (name, grid)
        for name in ('torch', 'reference')
        for grid in ((7, 5), (6, 12), (70,), (3, 4, 6))
    ],
    ids=str,
)


def make_inputs(grid, **kwargs):
    return make_structure_aware_inputs(grid=grid, M=4, dtype=torch.float64, **kwargs)


def delta(w, grid, *offset):
    """As w, with 1 at an offset and 0 elsewhere."""
    w = torch.zeros_like(w)
    w[(..., *(o % side for o, side in zip(offset, grid, strict=True)))] = 1.0
    return w


def rolled(x, grid, *shifts):
    """(B, N, M, D) moved along the grid."""
    dims = tuple(range(1, 1 + len(grid)))
    return x.unflatten(1, grid).roll(shifts, dims).flatten(1, len(grid))


@every_case
def test_rolling_the_input_rolls_the_output(name, grid):
    q, k, v, *weights = make_inputs(grid)
    shifts = (2, -3, 1)[: len(grid)]
    expected = structure_aware_attention(q, k, v, *weights, backend=name)
    moved = (rolled(x, grid, *shifts) for x in (q, k, v))
    out = structure_aware_attention(*moved, *weights, backend=name)
    assert_close('out', rolled(expected, grid, *shifts), out)


@every_case
def test_lengths_of_queries_and_keys_do_not_matter(name, grid):
    q, k, *rest = make_inputs(grid)
    q, k = q * 1e5, k * 1e5  # so that eps is below rounding
    expected = structure_aware_attention(q, k, *rest, backend=name)
    generator = torch.Generator().manual_seed(1)
    lengths = torch.rand(2, *q.shape[:3], 1, generator=generator).double() + 0.5
    out = structure_aware_attention(q * lengths[0], k * lengths[1], *rest, backend=name)
    assert_close('out', expected, out)


@every_case
def test_delta_value_kernel_multiplies_values_by_its_pattern(name, grid):
    q, k, v, w_a, w_b, bias = make_inputs(grid)
    w_b = torch.cat([delta(w_b[:1], grid, *[0] * len(grid)), 0 * w_b[1:]])
    patterns = attention_kernels(q, k, w_a, w_b)[0]  # (B, M, K, N)
    out = structure_aware_attention(q, k, v, w_a, w_b, 0 * bias, backend=name)
    assert_close('out', patterns[:, :, 0].transpose(1, 2)[..., None] * v, out)


@every_case
def test_shifted_delta_value_kernel_moves_values(name, grid):
    q, k, v, w_a, w_b, bias = make_inputs(grid, K=1)
    offset = (1, -2, 2)[: len(grid)]
    w_b = delta(w_b, grid, *offset)
    pattern = attention_kernels(q, k, w_a, w_b)[0][:, :, 0]  # (B, M, N)
    out = structure_aware_attention(q, k, v, w_a, w_b, 0 * bias, backend=name)
    expected = pattern.transpose(1, 2)[..., None] * rolled(v, grid, *offset)
    assert_close('out', expected, out)


@every_case
def test_delta_key_kernel_compares_each_pixel_with_itself(name, grid):
    q, k, v, w_a, w_b, bias = make_inputs(grid, K=1)
    w_a = delta(w_a, grid, *[0] * len(grid))
    w_b = delta(w_b, grid, *[0] * len(grid))
    cosine = (normalized(q) * normalized(k)).sum(-1, keepdim=True)
    out = structure_aware_attention(q, k, v, w_a, w_b, bias, backend=name)
    assert_close('out', cosine * (v + bias[:, 0]), out)


@every_case
def test_constant_kernels_take_means(name, grid):
    q, k, v, w_a, w_b, bias = make_inputs(grid, K=1)
    w_a, w_b = (torch.full_like(w, 1 / q.shape[1]) for w in (w_a, w_b))
    k_mean, v_mean = (x.mean(1, keepdim=True) for x in (normalized(k), v))
    pattern = (normalized(q) * k_mean).sum(-1, keepdim=True)
    out = structure_aware_attention(q, k, v, w_a, w_b, bias, backend=name)
    assert_close('out', pattern * (v_mean + bias[:, 0]), out)


@every_case
def test_linear_in_values_without_bias(name, grid):
    q, k, v, w_a, w_b, bias = make_inputs(grid)
    other = make_inputs(grid, seed=1)[2]

    def function(v):
        return structure_aware_attention(q, k, v, w_a, w_b, 0 * bias, backend=name)

    expected = 2 * function(v) - 3 * function(other)
    assert_close('out', expected, function(2 * v - 3 * other))


@every_case
def test_heads_are_exchangeable(name, grid):
    q, k, v, *weights = make_inputs(grid)
    order = torch.tensor([2, 0, 3, 1])
    expected = structure_aware_attention(q, k, v, *weights, backend=name)
    permuted = (x[:, :, order] for x in (q, k, v))
    out = structure_aware_attention(*permuted, *weights, backend=name)
    assert_close('out', expected[:, :, order], out)


@pytest.mark.parametrize('name', ['torch', 'reference'])
def test_borders_wrap(name):
    """Equal to convolution of a periodic image, not of one with zeros around it."""
    grid = (6, 12)
    q, k, v, w_a, w_b, bias = make_inputs(grid, K=1)
    delta_a = delta(w_a, grid, 0, 0)
    out = structure_aware_attention(q, k, v, delta_a, w_b, 0 * bias, backend=name)
    cosine = (normalized(q) * normalized(k)).sum(-1, keepdim=True)
    image = v.unflatten(1, grid).permute(0, 3, 4, 1, 2).flatten(0, 2).unsqueeze(1)
    flipped = w_b.flip(-1, -2).unsqueeze(0)  # conv2d correlates

    def convolved(mode):
        padded = F.pad(image, (grid[1] - 1, 0, grid[0] - 1, 0), mode=mode)
        y = F.conv2d(padded, flipped)
        return y.view(*v.shape[:1], 4, 8, -1).permute(0, 3, 1, 2)

    assert_close('out', cosine * convolved('circular'), out)
    assert not torch.allclose(cosine * convolved('constant'), out, rtol=0.1)
