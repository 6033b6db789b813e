"""Deformable attention on the CPU: the definition, its oracles and the backends."""

import pytest
import torch
from compiled_extension import by_compiled, by_cpu_backend
from operator_cases import names_of
from operator_cases import setup as setup_operator
from operator_checks import (
    check_as_near_as_the_definition,
    check_decomposition,
    check_operator,
    every_case,
    supported,
    threads,
)

from mmattn.ops.common import pieces
from mmattn.ops.deformable_attention import cpp_impl
from tools.benchmark.tolerances import run_with_grads

GRID = (7, 5)
NAMES = names_of('deformable_attention')
SHAPES = {
    'table for the grid': dict(),
    'table for a smaller grid': dict(grid=(9, 12), table_size=(7, 9)),
    'table for a larger grid': dict(grid=(4, 3), table_size=(30, 21)),
    'table of one row': dict(table_size=(1, 9)),
    'stride 1, as many keys as queries': dict(K=35),
    'groups are heads': dict(G=4),
    'one group': dict(G=1, M=3),
    'one query': dict(grid=(1, 1)),
    'one query, another table': dict(grid=(1, 1), table_size=(3, 5)),
    'queries 63 in a row': dict(grid=(1, 63)),
    'queries 63 in a column': dict(grid=(63, 1), table_size=(7, 7)),
    'one key': dict(grid=(3, 4), K=1),
    'blocks of keys': dict(grid=(5, 61), K=131, B=1),
    'table of one number': dict(grid=(5, 61), K=131, B=1, D=7, table_size=(1, 1)),
    'one of everything': dict(grid=(1, 1), K=1, B=1, M=1, D=1, G=1),
}
PLACES = {'DAT++': True, 'DAT': False}


@pytest.fixture
def backend():
    return 'torch'


@pytest.fixture
def setup(backend):
    """Return a function that makes calls of a backend."""

    def make(name=backend, dtype=torch.float32, **shape):
        dtype = supported(name, dtype)
        return setup_operator('deformable_attention', name, dtype=dtype, **shape)

    return make


def normalized(i, side, align_corners):
    """Return where `grid_sample` has pixel i of a side."""
    if align_corners:
        return 2 * i / (side - 1) - 1 if side > 1 else 0.0
    return (2 * i + 1) / side - 1


def by_hats(grid, align_corners):
    """The bias as `Y table X`, with rows of max(0, 1 - |distance to a number|)."""

    def function(q, k, v, positions, table):
        M, G = table.shape[0], positions.shape[1]
        H, W = grid
        rows, columns = (
            torch.tensor(
                [normalized(i, side, align_corners) for i in range(side)], dtype=q.dtype
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


@every_case(narrow=False, shape=SHAPES, align_corners=PLACES)
def test_decomposition(shape, dtype, align_corners):
    settings = dict(align_corners=align_corners, dtype=dtype)
    check_decomposition('deformable_attention', **settings, **shape)


# The rows take 750 MB for many keys, which are blocks for the other backends alone.
@every_case(
    1,
    False,
    shape={name: SHAPES[name] for name in SHAPES if name != 'blocks of keys'},
    align_corners=PLACES,
)
def test_against_hats(setup, shape, align_corners, dtype):
    settings = dict(align_corners=align_corners, dtype=dtype)
    function, inputs = setup('reference', **settings, **shape)
    hats = by_hats(shape.get('grid', GRID), align_corners)
    check_operator(function, inputs, expected=hats)


@by_cpu_backend
@every_case(shape=SHAPES, align_corners=PLACES)
def test_cpu_backend(setup, shape, dtype, align_corners):
    check_operator(*setup(align_corners=align_corners, dtype=dtype, **shape))


@every_case(narrow=False, shape=SHAPES)
def test_torch_in_pieces(setup, monkeypatch, shape, dtype):
    monkeypatch.setattr(pieces, 'ELEMENTS', 60)
    check_operator(*setup(dtype=dtype, **shape))


@pytest.mark.parametrize('elements', [300, 600, 1200, 1 << 18])
def test_groups_and_images_at_once(setup, monkeypatch, elements):
    """Some queries, some groups of an image, some images, all."""
    monkeypatch.setattr(pieces, 'ELEMENTS', elements)
    check_operator(*setup(B=5, M=6, G=3, K=4, grid=(6, 4)))
    check_operator(*setup(B=5, M=6, G=3, K=4, grid=(6, 4), table_size=(6, 9)))


TABLES = {'unit step': None, 'any': (6, 9)}
both_tables = pytest.mark.parametrize('table_size', TABLES.values(), ids=TABLES.keys())


@by_cpu_backend
@pytest.mark.parametrize('align_corners', PLACES.values(), ids=PLACES)
@both_tables
def test_keys_at_the_clamps_and_outside(setup, table_size, align_corners):
    """Values everywhere; gradients too, of all but positions where they have kinks."""
    settings = dict(align_corners=align_corners, dtype=torch.float32)
    function, inputs = setup(K=9, table_size=table_size, **settings)
    places = torch.tensor([-1.0, 0.0, 1.0])
    inputs[3] = torch.cartesian_prod(places, places).expand(2, 2, 9, 2)
    check_operator(function, inputs, [name != 'positions' for name in NAMES])
    for scale in (1.5, 3.0, 1e30):
        far = [*inputs[:3], inputs[3] * scale, inputs[4]]
        check_operator(function, far, [name != 'positions' for name in NAMES])
    far = [*inputs[:3], torch.full_like(inputs[3], 7.0), inputs[4]]
    out, grads = run_with_grads(function, far)
    assert not grads[3].any() and not grads[4].any()


@by_cpu_backend
@both_tables
def test_side_of_a_kink_is_that_of_grid_sample(setup, table_size):
    """At numbers of the table, on a grid whose coordinates are exact."""
    grid = (5, 9)  # steps of 1/2 and 1/4
    if table_size is not None:
        table_size = (5, 9)  # half a step of the table, exactly
    function, inputs = setup(grid=grid, K=45, table_size=table_size)
    y, x = (torch.linspace(-1, 1, side) for side in grid)
    inputs[3] = torch.cartesian_prod(y, x).flip(-1).expand(2, 2, 45, 2)
    check_operator(function, inputs)


@by_cpu_backend
@both_tables
@pytest.mark.parametrize('scale', [1e-3, 200.0])
def test_extreme_scores(setup, table_size, scale):
    """Up to some thousands; what is left of the softmax may be one key."""
    function, inputs = setup(table_size=table_size, dtype=torch.float64)
    inputs[0], inputs[4] = inputs[0] * scale, inputs[4] * scale
    if inputs[0].dtype == torch.float64:
        check_operator(function, inputs)
    else:
        check_as_near_as_the_definition(function, inputs, largest=5000)
    out, grads = run_with_grads(function, [x.float() for x in inputs])
    assert all(x.isfinite().all() for x in (out, *grads))


@by_compiled
@pytest.mark.parametrize('scale', [5.0, 20.0])
def test_long_steps_in_a_steep_table(setup, scale):
    """A score is as many times as wrong as a place as numbers differ."""
    function, inputs = setup(table_size=(6, 300))
    inputs[4] = inputs[4] * scale
    check_operator(function, inputs)


@by_cpu_backend
@pytest.mark.parametrize('seen', [0, 1])
def test_average_of_ones_is_one(setup, seen):
    """Shares that are rounded to half precision are not rounded down."""
    function, (q, k, v, *bias) = setup(K=131, D=7, dtype=torch.bfloat16)
    k[:, 1 - seen :: 2] = -50  # hides each other key
    out = function(q.abs() + 1, k, torch.ones_like(v), *bias)
    assert torch.equal(out, torch.ones_like(q))


@by_cpu_backend
def test_small_shares_in_half_precision(setup):
    """Each is rounded at most twice to bfloat16, once as a share and once as output."""
    sizes = dict(B=1, M=1, G=1, K=2, D=1, grid=(1, 400), table_size=(1, 1))
    function, (q, k, _, *bias) = setup(dtype=torch.bfloat16, **sizes)
    q = torch.linspace(-40, 0, q.numel()).to(q).view_as(q)
    k = torch.tensor([0.0, 1.0]).to(k).view_as(k)
    out, expected = function(q, k, k, *bias), q.double().sigmoid()
    assert ((out.double() / expected - 1).abs() < 2.1 * 2**-8).all()


@by_cpu_backend
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('place', [0, 65, 66])
def test_one_key_may_take_all(setup, dtype, place):
    """The last block has three keys."""
    function, (q, k, v, *bias) = setup(K=67, D=7, dtype=dtype)
    k = torch.zeros_like(k)
    k[:, place] = 30
    out = function(torch.full_like(q, 30), k, v, *bias)
    assert torch.equal(out, v[:, place, None].expand_as(out))


@by_cpu_backend
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('score', [-1e25, -1e37])
def test_equally_low_scores_average(setup, dtype, score):
    """Nothing that fills a block may count as a higher score."""
    sizes = dict(K=67, D=1, table_size=(1, 1))
    function, (q, k, v, *bias) = setup(dtype=dtype, **sizes)
    out = function(torch.ones_like(q), torch.full_like(k, score), v, *bias)
    expected = v.double().mean(1, keepdim=True).expand_as(out)
    torch.testing.assert_close(out.double(), expected, atol=2**-8, rtol=0)


@by_compiled
@pytest.mark.usefixtures('setup')
def test_logarithms_of_rounded_shares():
    """Shares rounded down would have sums that are 0.3 % too small."""
    q, k, v = (torch.randn(1, n, 2, 32).bfloat16() for n in (35, 131, 131))
    bias = torch.zeros(1, 1, 131, 2), torch.zeros(2, 1, 1)
    statistics = cpp_impl.forward(q, k, v, *bias, grid=GRID, align_corners=True)[1]
    scores = torch.einsum('bnmd,bsmd->bmns', q.double(), k.double()) * 32**-0.5
    assert (statistics[..., 0] - scores.logsumexp(-1)).abs().max() < 1e-3


@by_cpu_backend
@pytest.mark.parametrize('name', ['q', 'grad'])
def test_nan_stays_in_its_image(setup, name):
    """Also where a tile of queries is followed by part of one, in the same memory."""
    function, inputs = setup(grid=(1, 63), dtype=torch.bfloat16)
    tensors = [x.clone() for x in inputs]
    grad = torch.ones_like(tensors[0])
    dict(q=tensors[0], grad=grad)[name][0, 15] = float('nan')
    q, k, v, *_ = tensors = [x.requires_grad_() for x in tensors]
    with threads(1):
        grads = torch.autograd.grad(function(*tensors), (q, k, v), grad)
    assert all(x[1].isfinite().all() for x in grads)


@by_cpu_backend
@both_tables
@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_position_that_is_no_number(setup, table_size, value):
    function, inputs = setup(table_size=table_size)
    positions = inputs[3] = inputs[3].clone()
    positions[0, 0, 2] = value
    out, grads = run_with_grads(function, inputs)
    assert out[1].isfinite().all() and out[0, :, 2:].isfinite().all()
    assert grads[0][1].isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@by_compiled
def test_compiled_parts_of_a_head(setup, dtype, monkeypatch):
    """More threads than heads split the rows of queries, one of them an empty part."""
    monkeypatch.setattr(cpp_impl, 'MIN_SPLIT_QUERIES', 1)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 3)
    assert cpp_impl._num_splits(1, (7, 5)) == 3 and cpp_impl._num_splits(1, (2, 5)) == 2
    check_operator(*setup(B=1, M=1, G=1, K=70, grid=(7, 50), dtype=dtype))
