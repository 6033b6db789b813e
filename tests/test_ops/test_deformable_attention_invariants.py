"""Properties of deformable attention v2 on the CPU, whatever the numbers are."""

import pytest
import torch
import torch.nn.functional as F
from deformable_cases import (
    NAMES,
    both_grids,
    products,  # noqa: F401
    setup,
)
from operator_checks import check_operator

from tools.benchmark.tolerances import assert_close, run_with_grads

TABLES = {'unit step': None, 'any': (6, 9)}
both_tables = pytest.mark.parametrize('table_size', TABLES.values(), ids=TABLES.keys())
both_names = pytest.mark.parametrize('name', ['torch', 'reference'])


@both_names
@both_tables
def test_table_of_zeros_is_plain_attention(name, table_size):
    function, inputs = setup(name, table_size=table_size, dtype=torch.float64)
    inputs[-1].zero_()

    def plain(q, k, v, *others):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    out, grads = run_with_grads(function, inputs)
    expected, expected_grads = run_with_grads(plain, inputs, [True] * 3 + [False] * 2)
    assert_close('out', expected, out)
    for name, e, a in zip(NAMES, expected_grads[:3], grads, strict=False):
        assert_close(name, e, a)
    assert not grads[3].any()  # of positions: the table is flat


@both_grids
@both_tables
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_keys_at_the_clamps_and_outside(dtype, table_size, align_corners):
    """Values everywhere; gradients too, of all but positions where they have kinks."""
    function, inputs = setup(
        K=9, table_size=table_size, dtype=dtype, align_corners=align_corners
    )
    places = torch.tensor([-1.0, 0.0, 1.0])
    inputs[3] = torch.cartesian_prod(places, places).expand(2, 2, 9, 2).to(dtype)
    check_operator(function, inputs, [name != 'positions' for name in NAMES])
    for scale in (1.5, 3.0, 1e3, 1e30):
        far = [*inputs[:3], inputs[3] * scale, inputs[4]]
        check_operator(function, far, [name != 'positions' for name in NAMES])
    far = [*inputs[:3], torch.full_like(inputs[3], 7.0), inputs[4]]
    out, grads = run_with_grads(function, far)
    assert not grads[3].any() and not grads[4].any()


@both_tables
def test_side_of_a_kink_is_that_of_grid_sample(table_size):
    """At numbers of the table, on a grid whose coordinates are exact."""
    grid = (5, 9)  # steps of 1/2 and 1/4
    if table_size is not None:
        table_size = (5, 9)  # half a step of the table, exactly
    function, inputs = setup(grid=grid, K=45, table_size=table_size)
    y, x = (torch.linspace(-1, 1, side) for side in grid)
    inputs[3] = torch.cartesian_prod(y, x).flip(-1).expand(2, 2, 45, 2)
    check_operator(function, inputs)


@both_tables
@pytest.mark.parametrize('scale', [1e-3, 30.0, 200.0])
def test_extreme_scores(table_size, scale):
    """Up to some thousands; what is left of the softmax may be one key."""
    function, inputs = setup(table_size=table_size, dtype=torch.float64)
    inputs[0], inputs[4] = inputs[0] * scale, inputs[4] * scale
    check_operator(function, inputs)
    out, grads = run_with_grads(function, [x.float() for x in inputs])
    assert all(x.isfinite().all() for x in (out, *grads))


@both_names
@both_tables
def test_nan_in_a_query_stays_there(name, table_size):
    function, inputs = setup(name, table_size=table_size)
    q = inputs[0] = inputs[0].clone()
    q[0, 17, 1, 3] = float('nan')
    out, (dq, *_) = run_with_grads(function, inputs)
    broken = torch.zeros_like(q, dtype=torch.bool)
    broken[0, 17, 1] = True
    assert torch.equal(out.isnan(), broken) and torch.equal(dq.isnan(), broken)


@both_tables
@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_position_that_is_no_number(table_size, value):
    function, inputs = setup(table_size=table_size)
    positions = inputs[3] = inputs[3].clone()
    positions[0, 0, 2] = value
    out, grads = run_with_grads(function, inputs)
    assert out[1].isfinite().all() and out[0, :, 2:].isfinite().all()
    assert grads[0][1].isfinite().all()


@both_tables
def test_two_runs_are_equal(table_size):
    function, inputs = setup(grid=(20, 30), K=60, table_size=table_size)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (run_with_grads(function, inputs) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(first[0], second[0])
    assert all(map(torch.equal, first[1], second[1]))


@both_tables
def test_keys_have_no_order(table_size):
    function, (q, k, v, positions, table) = setup(
        table_size=table_size, dtype=torch.float64
    )
    order = torch.randperm(k.shape[1], generator=torch.Generator().manual_seed(0))
    out = function(q, k, v, positions, table)
    shuffled = function(q, k[:, order], v[:, order], positions[:, :, order], table)
    assert_close('out', out, shuffled)


@both_names
def test_groups_share_positions(name):
    function, (q, k, v, positions, table) = setup(name, M=4, G=2, dtype=torch.float64)
    out = function(q, k, v, positions, table)
    for m in range(4):
        head = slice(m, m + 1)
        one = function(
            *(x[:, :, head] for x in (q, k, v)), positions[:, [m // 2]], table[head]
        )
        assert_close('out', one, out[:, :, head])


@both_tables
@both_names
def test_autocast_casts_to_its_dtype(name, table_size):
    function, inputs = setup(name, table_size=table_size)
    expected = function(*(x.bfloat16() for x in inputs[:3]), *inputs[3:])
    with torch.autocast('cpu', torch.bfloat16):
        out = function(*inputs)
    assert out.dtype == torch.bfloat16
    assert torch.equal(expected, out)


@both_tables
def test_backward_under_autocast(table_size):
    function, inputs = setup(table_size=table_size)
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves)
    expected = torch.autograd.grad(out, leaves, out, retain_graph=True)
    with torch.autocast('cpu', torch.bfloat16):
        grads = torch.autograd.grad(out, leaves, out)
    assert all(map(torch.equal, expected, grads))


def test_one_side_of_one_pixel_has_no_step():
    """The only row lies at 0, wherever a key is the same number of the table's row."""
    function, inputs = setup(grid=(1, 6), dtype=torch.float64)
    out, grads = run_with_grads(function, inputs)
    inputs[3] = inputs[3] * torch.tensor([1.0, 5.0])
    assert_close('out', out, function(*inputs))
    assert not grads[3][..., 1].any() and grads[3][..., 0].any()
