"""Both forms of deformable attention on the CPU: definitions, oracles and the paths."""

from functools import partial
from itertools import product
from math import floor

import pytest
import torch
from deformable_cases import (  # noqa: F401
    GRID,
    NAMES,
    SHAPES,
    blocks,
    both_grids,
    every_shape,
    products,
    setup,
)
from largest_tensor import LargestTensor
from operator_checks import (
    check_empty,
    check_expanded_cotangent,
    check_operator,
    every_case_in_float64,
    every_dtype,
)

from mmattn.ops.deformable_attention import torch_impl
from mmattn.ops.deformable_attention.decomposition import (
    deformable_attention_decomposition,
)
from tools.benchmark.tolerances import assert_close, run_with_grads


def interpolate(image, y, x):
    """Bilinearly at floats y and x, with zeros outside; (..., H, W) to (...)."""
    top, left, out = floor(y), floor(x), 0
    for i, j in product((top, top + 1), (left, left + 1)):
        if 0 <= i < image.shape[-2] and 0 <= j < image.shape[-1]:
            weight = (1 - abs(y - i)) * (1 - abs(x - j))
            out = out + weight * image[..., i, j]
    return out


def normalized(i, side, align_corners):
    """Return where `grid_sample` has pixel i of a side."""
    if align_corners:
        return 2 * i / (side - 1) - 1 if side > 1 else 0.0
    return (2 * i + 1) / side - 1


def v2_by_loops(q, k, v, positions, table, *, grid, align_corners):
    (B, N, M, D), (G, K) = q.shape, positions.shape[1:3]
    (H, W), (Th, Tw) = grid, table.shape[1:]
    out = torch.zeros_like(q)

    for b, m, n in product(range(B), range(M), range(N)):
        y, x = (
            normalized(i, side, align_corners) for i, side in ((n // W, H), (n % W, W))
        )
        scores = []
        for s in range(K):
            px, py = positions[b, m * G // M, s].tolist()
            row = ((y - py) / 2 + 1) / 2 * (Th - 1)
            column = ((x - px) / 2 + 1) / 2 * (Tw - 1)
            bias = interpolate(table[m], row, column)
            scores.append(q[b, n, m] @ k[b, s, m] / D**0.5 + bias)
        out[b, n, m] = torch.stack(scores).softmax(0) @ v[b, :, m]
    return out


def v2_by_hats(grid, align_corners):
    """The bias as `Y table X`, with rows of max(0, 1 - |distance to a number|)."""

    def function(q, k, v, positions, table):
        M, G = table.shape[0], positions.shape[1]
        H, W = grid
        rows, columns = (
            torch.tensor(
                [normalized(i, side, align_corners) for i in range(side)],
                dtype=q.dtype,
            )
            for side in grid
        )
        queries = columns.repeat(H), rows.repeat_interleave(W)  # x, y
        sides = zip(queries, positions.unbind(-1), (2, 1), strict=True)
        hats = []
        for line, keys, axis in sides:
            size = table.shape[axis]
            points = ((line - keys[..., None]) / 2 + 1) / 2 * (size - 1)
            numbers = torch.arange(size, dtype=q.dtype)
            hat = (1 - (points[..., None] - numbers).abs()).relu()
            hats.append(hat.repeat_interleave(M // G, 1))  # (B, M, K, N, size)
        bias = torch.einsum('bmsni,mij,bmsnj->bmns', hats[1], table, hats[0])
        scores = torch.einsum('bnmd,bsmd->bmns', q, k) * q.shape[-1] ** -0.5
        return torch.einsum('bmns,bsmd->bnmd', (scores + bias).softmax(-1), v)

    return function


@both_grids
@pytest.mark.parametrize('table_size', [None, (4, 6)], ids=['unit step', 'any'])
@pytest.mark.parametrize('name', ['reference', 'torch'])
def test_v2_against_loops(name, table_size, align_corners):
    settings = dict(grid=(3, 4), align_corners=align_corners)
    function, inputs = setup(
        name,
        **settings,
        B=2,
        K=5,
        M=2,
        D=3,
        table_size=table_size,
        dtype=torch.float64,
    )
    assert_close('out', v2_by_loops(*inputs, **settings), function(*inputs))


@both_grids
@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16], ids=str)
@every_shape
def test_v2_of_small_maps(shape, dtype, align_corners, monkeypatch):
    monkeypatch.setattr(torch_impl, 'REFERENCE_PAIRS', 1 << 18)
    settings = dict(align_corners=align_corners, dtype=dtype)
    function, inputs = setup('torch', **settings, **shape)
    expected = run_with_grads(partial(function, backend='reference'), inputs)
    out, grads = run_with_grads(function, inputs)
    assert_close('out', expected[0], out)
    assert out.is_contiguous()
    for name, *pair in zip(NAMES, expected[1], grads, strict=True):
        assert_close(name, *pair, dtype)


@both_grids
@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16], ids=str)
@every_shape
def test_v2_decomposition(shape, dtype, align_corners):
    settings = dict(align_corners=align_corners)
    function, inputs = setup('reference', dtype=dtype, **settings, **shape)
    grid = shape.get('grid', GRID)
    out = deformable_attention_decomposition(*inputs, grid=grid, **settings)
    assert_close('out', function(*inputs), out)


@both_grids
@pytest.mark.parametrize('name', ['reference', 'torch'])
@every_shape
def test_v2_against_hats(shape, name, align_corners):
    function, inputs = setup(
        name, align_corners=align_corners, dtype=torch.float64, **shape
    )
    hats = v2_by_hats(shape.get('grid', GRID), align_corners)
    check_operator(function, inputs, expected=hats)


@both_grids
@pytest.mark.parametrize('name', ['reference', 'torch'])
def test_v2_gradcheck(name, align_corners):
    function, inputs = setup(
        name,
        align_corners=align_corners,
        grid=(2, 3),
        K=3,
        B=1,
        M=2,
        D=2,
        dtype=torch.float64,
    )
    inputs = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(function, inputs)


@every_case_in_float64(shape=SHAPES, align_corners={'DAT++': True, 'DAT': False})
def test_cpu_backend(shape, dtype, align_corners):
    check_operator(*setup(align_corners=align_corners, dtype=dtype, **shape))


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16], ids=str)
@every_shape
def test_cpu_backend_in_blocks(blocks, shape, dtype):  # noqa: F811
    check_operator(*setup(dtype=dtype, **shape))


@pytest.mark.parametrize('elements', [300, 3000, 1 << 18])
def test_heads_and_images_at_once(monkeypatch, elements):
    """Part of the heads of an image, some images, all."""
    monkeypatch.setattr(torch_impl, 'BLOCK_ELEMENTS', elements)
    check_operator(*setup(B=5, M=6, G=3, K=4, grid=(6, 4)))
    check_operator(*setup(B=5, M=6, G=3, K=4, grid=(6, 4), table_size=(6, 9)))


@pytest.mark.parametrize('grid', [(7, 5), (1, 8), (12, 31)], ids=str)
@every_dtype
def test_window_and_taps_agree(monkeypatch, grid, dtype):
    """Two formulations of the bias where a query's step is a step in the table."""
    function, inputs = setup(grid=grid, dtype=dtype, K=23)
    window, window_grads = run_with_grads(function, inputs)
    used = []

    class Spy(torch_impl.TapBias):
        def make(self, keys):
            used.append(keys)
            return super().make(keys)

    monkeypatch.setattr(torch_impl, 'UnitStepBias', Spy)
    taps, taps_grads = run_with_grads(function, inputs)
    assert used
    assert_close('out', window, taps, dtype)
    for name, *grads in zip(NAMES, window_grads, taps_grads, strict=True):
        assert_close(name, *grads, dtype)


@pytest.mark.parametrize('table_size', [None, (13, 13)], ids=['unit step', 'any'])
def test_no_map_of_all_pairs_is_made(monkeypatch, table_size):
    monkeypatch.setattr(torch_impl, 'BLOCK_ELEMENTS', 1 << 14)
    monkeypatch.setattr(torch_impl, 'BLOCK_QUERIES', 1 << 10)
    grid, K = (40, 50), 200
    _, inputs = setup(grid=grid, K=K, B=1, M=2, G=1, table_size=table_size)
    settings = dict(grid=grid, align_corners=True)
    with LargestTensor() as largest:
        out, lse = torch_impl.forward(*inputs, **settings)
        torch_impl.backward(out, out, lse, *inputs, **settings)
    # Of the pairs of one head there are 400 000; a padded table has 36 000 numbers.
    assert largest.numel < 50_000


@pytest.mark.parametrize('table_size', [None, (6, 8)], ids=['unit step', 'any'])
def test_views(table_size):
    """Expanded, permuted and sliced views, and an expanded cotangent."""
    function, (q, k, v, positions, table) = setup(table_size=table_size)
    views = [
        q[:1, :, :1].expand_as(q),
        k.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
        v.repeat_interleave(2, -1)[..., ::2],
        positions[:, :1].expand_as(positions),
        table.mT.contiguous().mT,
    ]
    assert not any(x.is_contiguous() for x in views)
    check_operator(function, views)
    check_expanded_cotangent(function, [q, k, v, positions, table], 2)


def test_inputs_are_left_alone():
    function, inputs = setup(B=1, M=1, G=1)
    inputs = [x.contiguous() for x in inputs]
    before = [x.clone() for x in inputs]
    run_with_grads(function, inputs)
    assert all(map(torch.equal, before, inputs))


@pytest.mark.parametrize('name', ['torch', 'reference'])
@pytest.mark.parametrize('table_size', [None, (6, 8)], ids=['unit step', 'any'])
def test_batch_of_zero(name, table_size):
    function, inputs = setup(name, B=0, table_size=table_size)
    check_empty(function, inputs)


@pytest.mark.parametrize('wanted', NAMES)
def test_gradient_of_one_input(wanted):
    function, inputs = setup()
    check_operator(function, inputs, [name == wanted for name in NAMES])
