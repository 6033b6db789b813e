"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from largest_tensor import LargestTensor
from operator_cases import names_of
from operator_cases import setup as setup_operator
from operator_checks import check_as_near_as_the_definition, check_operator
from triton_devices import every_device, every_triton

from mmattn.ops.deformable_attention import triton_impl
from tools.benchmark.tolerances import run_with_grads

pytest.importorskip('triton')

NAMES = names_of('deformable_attention')
SMALL = dict(grid=(4, 5), K=5, B=1, M=2, D=4)
SHAPES = {
    'one query, one key': dict(grid=(1, 1), K=1, B=1, M=1, G=1),
    'queries 63 in a row, group of 2': dict(grid=(1, 63), K=5, B=1, M=2, G=1, D=4),
    'queries 70 in a column': dict(grid=(70, 1), K=3, B=1, M=1, G=1, D=4),
    'grid 7x5, batch 2, heads 4, groups 2': dict(grid=(7, 5), K=2, D=4),
    'groups of one head': dict(grid=(3, 4), K=2, B=1, M=3, G=3, D=4),
    'grid 9x10, one head': dict(grid=(9, 10), K=3, B=1, M=1, G=1),
    'one key': dict(grid=(2, 3), K=1, B=1, M=2, D=4),
    'keys 37': dict(grid=(3, 4), K=37, B=1, M=1, G=1, D=4),
    'width 16': dict(grid=(3, 4), K=5, B=1, M=1, G=1, D=16),
    'width 32': dict(grid=(3, 4), K=5, B=1, M=1, G=1, D=32),
    'width 48': dict(grid=(3, 4), K=5, B=1, M=1, G=1, D=48),
    'width 64': dict(grid=(3, 4), K=5, B=1, M=1, G=1, D=64),
    'small table': dict(SMALL, table_size=(3, 4)),
    'table in tiles, steps above 1': dict(
        grid=(3, 4), K=3, B=1, M=1, G=1, D=4, table_size=(9, 70)
    ),
    'table of one row': dict(SMALL, table_size=(1, 6)),
    'table of one cell': dict(SMALL, table_size=(1, 1)),
}
setup = functools.partial(setup_operator, 'deformable_attention')
EDGES = {  # the places of queries differ, nothing else
    name: SHAPES[name]
    for name in (
        'one query, one key',
        'queries 63 in a row, group of 2',
        'grid 7x5, batch 2, heads 4, groups 2',
        'small table',
        'table in tiles, steps above 1',
        'table of one cell',
    )
}


@every_triton('shape', SHAPES)
def test_against_reference(shape, device):
    triton, inputs = setup('triton', **shape, device=device)
    check_operator(triton, inputs)


@every_triton('shape', EDGES)
def test_queries_placed_by_their_edges(shape, device):
    triton, inputs = setup('triton', **shape, align_corners=False, device=device)
    check_operator(triton, inputs)


def test_window_form_is_for_tables_of_the_grid():
    table = torch.empty(2, 7, 9)
    assert triton_impl._is_unit_step(table, (4, 5), True)
    assert not triton_impl._is_unit_step(table, (4, 5), False)
    assert not triton_impl._is_unit_step(table, (5, 4), True)


@every_device
@pytest.mark.parametrize('form', ['window', 'four taps'])
def test_positions_on_kinks_and_outside(monkeypatch, form, device):
    """On a 5 x 3 grid all places are exact, so kinks have one side: floor's."""
    if form == 'four taps':
        monkeypatch.setattr(triton_impl, '_is_unit_step', lambda *_: False)
    shape = dict(grid=(5, 3), K=36, B=1, M=1, G=1, D=4)
    triton, (q, k, v, _, table) = setup('triton', **shape, device=device)
    side = torch.tensor([-1e9, -3.5, -2, -1, -0.5, 0, 0.125, 1, 1.5, 2, 3.25, 1e9])
    x, y = torch.meshgrid(side[[1, 3, 5, 6, 7, 9]], side[::2], indexing='ij')
    positions = torch.stack([x, y], -1).view(1, 1, 36, 2).to(device)
    check_operator(triton, [q, k, v, positions, table])


@every_triton('programs', {'one': 1, 'one for each block': 1000})
def test_split_of_sums_over_programs(monkeypatch, programs, device):
    """All queries and keys in one share, and one share for each block or key."""
    monkeypatch.setattr(triton_impl, 'TARGET_PROGRAMS', programs)
    triton, inputs = setup(
        'triton',
        grid=(9, 16),
        K=3,
        B=2,
        M=1,
        G=1,
        D=3,
        table_size=(5, 9),
        device=device,
    )
    check_operator(triton, inputs)


@every_device
@pytest.mark.parametrize(
    'room', [1, 2 * 15 * 2], ids=['one row of one image', 'two of three images']
)
def test_workspace_in_parts(monkeypatch, room, device):
    monkeypatch.setattr(triton_impl, 'WORKSPACE', room)
    shape = dict(grid=(3, 5), K=2, B=3, M=1, G=1, D=4)
    triton, inputs = setup('triton', **shape, device=device)
    check_operator(triton, inputs)


@every_device
def test_no_tensor_of_all_queries_and_keys(monkeypatch, device):
    shape = dict(grid=(6, 10), K=200, B=1, M=2, D=4)
    monkeypatch.setattr(triton_impl, 'WORKSPACE', 200 * 2 * 20)
    for name in ('TARGET_PROGRAMS', 'TABLE_PROGRAMS'):
        monkeypatch.setattr(triton_impl, name, 1)
    triton, inputs = setup('triton', **shape, device=device)
    settings = dict(grid=shape['grid'], align_corners=True)
    with LargestTensor() as largest:
        out, lse = triton_impl.forward(*inputs, **settings)
    assert out.numel() <= largest.numel < 200 * 2 * 20
    with LargestTensor() as largest:
        triton_impl.backward(out, out, lse, *inputs, **settings)
    assert largest.numel == 200 * 2 * 20


@every_triton('level', {x: x for x in ('near 137', 'near -249', 'steep table')})
def test_scores_out_of_the_range_of_exp(level, device):
    triton, (q, k, v, positions, table) = setup('triton', **SMALL, device=device)
    largest = 300.0
    if level == 'steep table':
        table = table * (largest / table.abs().amax())
    elif level == 'near 137':
        table = table + 137
    else:
        q, k = torch.full_like(q, 249**0.5), torch.full_like(k, -(249**0.5) / 2)
    check_as_near_as_the_definition(triton, [q, k, v, positions, table], largest)


REACHED = {  # the tensor, where it is NaN, and which rows (B, N, M) see it
    'q': ((0, 6, 1), (0, 6, 1)),
    'k': ((0, 1, 1), (0, slice(None), 1)),
    'positions': ((0, 1, 0), (0, slice(None), 1)),
    'table': ((1,), (slice(None), slice(None), 1)),
}


@every_triton('name, place, rows', {k: (k, *row) for k, row in REACHED.items()})
def test_nan_reaches_what_sees_it_only(name, place, rows, device):
    """Groups are heads."""
    shape = dict(grid=(4, 5), K=2, B=2, M=2, G=2, D=3)
    triton, inputs = setup('triton', **shape, device=device)
    clean, clean_grads = run_with_grads(triton, inputs)
    index = NAMES.index(name)
    inputs[index] = inputs[index].clone()
    inputs[index][place] = float('nan')
    hit = torch.zeros(2, 20, 2, dtype=torch.bool, device=device)
    hit[rows] = True
    out, grads = run_with_grads(triton, inputs)
    assert out[hit].isnan().all()
    assert torch.equal(out[~hit], clean[~hit])
    assert torch.equal(grads[0][~hit], clean_grads[0][~hit])
    away = ~hit.any(1)  # images and heads, which are groups
    for a, c in zip(grads[1:3], clean_grads[1:3], strict=True):
        assert torch.equal(a.transpose(1, 2)[away], c.transpose(1, 2)[away])
    assert torch.equal(grads[3][away], clean_grads[3][away])
    assert torch.equal(grads[4][away.all(0)], clean_grads[4][away.all(0)])
