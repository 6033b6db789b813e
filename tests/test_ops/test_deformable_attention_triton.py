"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from deformable_cases import NAMES, setup
from largest_tensor import LargestTensor
from operator_checks import (
    check_call,
    check_empty,
    check_operator,
    check_repeatable,
    every_real_call,
)
from triton_devices import (
    each_of,
    every_device,
    every_dtype,
    opcheck,
    outer_run,
    run_under_interpreter,
    seldom,
    seldom_interpreted,
)

from mmattn.ops.deformable_attention import triton_impl
from tools.benchmark.tolerances import TOLERANCES, assert_close, run_with_grads

pytest.importorskip('triton')

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

every_alignment = pytest.mark.parametrize(
    'align_corners', [True, False], ids=['centers', 'edges']
)
half = pytest.mark.parametrize(
    'dtype', [torch.float16, seldom(torch.bfloat16)], ids=['float16', 'bfloat16']
)


@outer_run
def test_under_interpreter(cases):
    run_under_interpreter(__file__, cases)


@every_device
@pytest.mark.parametrize('shape', each_of(SHAPES, 'queries 70 in a column'))
def test_against_reference(shape, device):
    triton, inputs = setup('triton', **shape, device=device)
    check_operator(triton, inputs)


@every_device
@pytest.mark.parametrize(
    'shape',
    each_of(
        EDGES,
        'queries 63 in a row, group of 2',
        'grid 7x5, batch 2, heads 4, groups 2',
    ),
)
def test_queries_placed_by_their_edges(shape, device):
    triton, inputs = setup('triton', **shape, align_corners=False, device=device)
    check_operator(triton, inputs)


def test_window_form_is_for_tables_of_the_grid():
    table = torch.empty(2, 7, 9)
    assert triton_impl._is_unit_step(table, (4, 5), True)
    assert not triton_impl._is_unit_step(table, (4, 5), False)
    assert not triton_impl._is_unit_step(table, (5, 4), True)


@every_device
@pytest.mark.parametrize(
    'grid', each_of({'map': (7, 5), 'row': (1, 9), 'column': (6, 1)}, 'row', 'column')
)
def test_window_form_against_four_taps(monkeypatch, grid, device):
    triton, inputs = setup('triton', grid=grid, K=5, B=1, M=2, D=4, device=device)
    window, window_grads = run_with_grads(triton, inputs)
    monkeypatch.setattr(triton_impl, '_is_unit_step', lambda *_: False)
    taps, taps_grads = run_with_grads(triton, inputs)
    assert_close('out', taps, window)
    for name, t, w in zip(NAMES, taps_grads, window_grads, strict=True):
        assert_close(name, t, w)


@every_device
@pytest.mark.parametrize('form', ['window', 'four taps'])
def test_positions_on_kinks_and_outside(monkeypatch, form, device):
    """On a 5 x 3 grid all places are exact, so kinks have one side: that of floor."""
    if form == 'four taps':
        monkeypatch.setattr(triton_impl, '_is_unit_step', lambda *_: False)
    shape = dict(grid=(5, 3), K=36, B=1, M=1, G=1, D=4)
    triton, (q, k, v, _, table) = setup('triton', **shape, device=device)
    side = torch.tensor([-1e9, -3.5, -2, -1, -0.5, 0, 0.125, 1, 1.5, 2, 3.25, 1e9])
    x, y = torch.meshgrid(side[[1, 3, 5, 6, 7, 9]], side[::2], indexing='ij')
    positions = torch.stack([x, y], -1).view(1, 1, 36, 2).to(device)
    check_operator(triton, [q, k, v, positions, table])


@every_device
@half
def test_half_precision(dtype, device):
    triton, inputs = setup('triton', **SMALL, dtype=dtype, device=device)
    check_operator(triton, inputs)


@every_device
@pytest.mark.parametrize('wanted', ['k', 'positions', 'table'])
def test_half_precision_parameters_and_requires_grad_subset(wanted, device):
    triton, inputs = setup('triton', **SMALL, dtype=torch.bfloat16, device=device)
    inputs = [x.bfloat16() for x in inputs]
    wanted = [name == wanted for name in NAMES]
    check_operator(triton, inputs, wanted)


@every_device
def test_expanded_and_permuted_inputs(device):
    triton, (q, k, v, positions, table) = setup(
        'triton', **dict(SMALL, B=2), device=device
    )
    inputs = [
        q[:1].expand(2, -1, -1, -1),
        k.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),  # D is not last
        torch.stack([v, v], 1)[:, 1],
        positions.mT.contiguous().mT[:1].expand(2, -1, -1, -1),
        table.mT.contiguous().mT,
    ]
    check_operator(triton, inputs)


@every_device
def test_batch_of_zero(device):
    triton, inputs = setup('triton', **dict(SMALL, B=0), device=device)
    check_empty(triton, inputs)


@every_device
@pytest.mark.parametrize('programs', [1, seldom(1000)])
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
    shape = dict(grid=(6, 10), K=40, B=1, M=2, D=4)
    monkeypatch.setattr(triton_impl, 'WORKSPACE', 40 * 2 * 20)
    monkeypatch.setattr(triton_impl, 'TARGET_PROGRAMS', 1)
    triton, inputs = setup('triton', **shape, device=device)
    settings = dict(grid=shape['grid'], align_corners=True)
    with LargestTensor() as largest:
        out, lse = triton_impl.forward(*inputs, **settings)
    assert out.numel() <= largest.numel < 2 * out.numel()
    with LargestTensor() as largest:
        triton_impl.backward(out, out, lse, *inputs, **settings)
    assert largest.numel == 40 * 2 * 20


@every_device
@pytest.mark.parametrize('level', [seldom('near 137'), 'near -249', 'steep table'])
def test_scores_out_of_the_range_of_exp(level, device):
    """Errors are at most twice those of the definition in float32; of gradients, also
    the rounding of the log-sum-exp, which is as large as the scores."""
    triton, (q, k, v, positions, table) = setup('triton', **SMALL, device=device)
    largest = 300.0
    if level == 'steep table':
        table = table * (largest / table.abs().amax())
    elif level == 'near 137':
        table = table + 137
    else:
        q, k = torch.full_like(q, 249**0.5), torch.full_like(k, -(249**0.5) / 2)
    inputs = [q, k, v, positions, table]
    reference = functools.partial(triton, backend='reference')
    floor = TOLERANCES[torch.float32].absolute
    rounding = torch.finfo(torch.float32).eps * largest
    out, grads = run_with_grads(triton, inputs)
    direct, direct_grads = run_with_grads(reference, inputs)
    exact, exact_grads = run_with_grads(reference, inputs, dtype=torch.float64)
    for name, e, d, a in zip(
        ('out', *NAMES),
        (exact, *exact_grads),
        (direct, *direct_grads),
        (out, *grads),
        strict=True,
    ):
        allowed = 2 * (d - e).abs().amax() + floor * (1 + e.abs().amax())
        if name != 'out':
            allowed += rounding * e.abs().amax()
        assert (a - e).abs().amax() <= allowed, name


@every_device
@pytest.mark.parametrize('where', ['q', seldom('k'), 'positions', seldom('table')])
def test_nan_reaches_what_sees_it_only(where, device):
    """The query's row; the image's head; the head, of the table. Groups are heads."""
    grid = (4, 5)
    shape = dict(grid=grid, K=2, B=2, M=2, G=2, D=3)
    triton, inputs = setup('triton', **shape, device=device)
    clean, clean_grads = run_with_grads(triton, inputs)
    index = NAMES.index(where)
    inputs[index] = inputs[index].clone()
    hit = torch.zeros(2, 20, 2, dtype=torch.bool, device=device)
    if where == 'q':
        inputs[index][0, 6, 1] = float('nan')
        hit[0, 6, 1] = True
    elif where == 'k':
        inputs[index][0, 1, 1] = float('nan')
        hit[0, :, 1] = True
    elif where == 'positions':
        inputs[index][0, 1, 0] = float('nan')
        hit[0, :, 1] = True
    else:
        inputs[index][1] = float('nan')
        hit[:, :, 1] = True
    out, grads = run_with_grads(triton, inputs)
    assert out[hit].isnan().all()
    assert torch.equal(out[~hit], clean[~hit])
    assert torch.equal(grads[0][~hit], clean_grads[0][~hit])
    away = ~hit.any(1)  # images and heads, which are groups
    for a, c in zip(grads[1:3], clean_grads[1:3], strict=True):
        assert torch.equal(a.transpose(1, 2)[away], c.transpose(1, 2)[away])
    assert torch.equal(grads[3][away], clean_grads[3][away])
    assert torch.equal(grads[4][away.all(0)], clean_grads[4][away.all(0)])


@seldom_interpreted
@every_device
def test_two_runs_are_equal(device):
    triton, inputs = setup('triton', **SMALL, device=device)
    check_repeatable(triton, inputs)


@every_device
@pytest.mark.parametrize(
    'change, reason',
    [(dict(dtype=torch.float64), 'float64'), (dict(D=72), 'at most 64 channels')],
    ids=['float64', 'width 72'],
)
def test_refusals(change, reason, device):
    triton, inputs = setup('triton', **(SMALL | change), device=device)
    with pytest.raises(ValueError, match=reason):
        triton(*inputs)


@every_device
def test_opcheck(device):
    shape = dict(grid=(2, 3), K=2, B=1, M=1, G=1, D=2)
    triton, inputs = setup('triton', **shape, device=device)
    inputs = [x.detach().requires_grad_() for x in inputs]
    opcheck(
        torch.ops.mmattn.deformable_attention,
        (*inputs, [2, 3], True, 'triton'),
        device,
    )


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')


@pytest.mark.gpu
@on_gpu
@every_dtype
@every_real_call('deformable_attention')
def test_real_shapes(call, dtype):
    check_call(call, 'triton', dtype, 'cuda')


@pytest.mark.gpu
@on_gpu
def test_memory_is_linear_in_queries():
    """At stage 1 of 800 x 1333 a map of scores alone would be 548 MB."""
    shape = dict(grid=(200, 334), K=1025, B=1, M=2, G=1, D=32, table_size=(111, 111))
    triton, inputs = setup('triton', **shape, device='cuda')
    inputs = [x.detach().requires_grad_() for x in inputs]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = triton(*inputs)
    out.sum().backward()
    extra = torch.cuda.max_memory_allocated() - before - 4 * triton_impl.WORKSPACE
    assert extra < 8 * out.nbytes


@pytest.mark.gpu
@on_gpu
def test_gpu_takes_triton_and_compiles():
    triton, inputs = setup('triton', **SMALL, device='cuda')
    chosen = functools.partial(triton, backend=None)
    compiled = torch.compile(chosen, fullgraph=True)
    assert torch.equal(compiled(*inputs), triton(*inputs))
