"""The Triton kernels: on a GPU, and on the CPU under Triton's interpreter."""

import functools

import pytest
import torch
from largest_tensor import LargestTensor
from ms_deform_cases import FORMS, NAMES, every_form, setup
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

from mmattn.ops import ms_deform_attn
from mmattn.ops.ms_deform_attn import triton_impl
from tools.benchmark.tolerances import assert_close, run_with_grads

pytest.importorskip('triton')

SMALL = dict(shapes=((3, 4), (1, 1)), Q=5, B=1, M=2, D=4)
SHAPES = {
    'one of everything': dict(shapes=((1, 1),), Q=1, B=1, M=1, D=1, P=1),
    'queries 31, batch 2, heads 3': dict(shapes=((7, 5), (1, 1)), Q=31, P=1),
    'points 3 of 4': dict(SMALL, P=3),
    'points 37': dict(SMALL, Q=2, P=37),
    'levels 8': dict(shapes=tuple((i, 9 - i) for i in range(1, 9)), Q=2, B=1, M=1),
    'a row and a column': dict(SMALL, shapes=((1, 9), (8, 1))),
    'width 8': dict(SMALL, D=8),
    'width 30': dict(SMALL, D=30),
    'width 32': dict(SMALL, D=32),
    'width 48': dict(SMALL, D=48, M=1),
    'width 64': dict(SMALL, D=64, M=1),
    'width 71': dict(SMALL, D=71, M=1),
    'width 128': dict(SMALL, D=128, M=1, Q=3),
    'width 256, points 3': dict(SMALL, D=256, M=1, Q=2, P=3),
}

every_order = pytest.mark.parametrize('order', ['atomics', 'in order'], indirect=True)
every_form_and_order = pytest.mark.parametrize(
    'form, order',
    [
        seldom(form, order, id=f'{name}, {order}')
        if (name, order)
        in (
            ('locations', 'in order'),
            ('offsets from points', 'atomics'),
            ('offsets in boxes', 'in order'),
        )
        else pytest.param(form, order, id=f'{name}, {order}')
        for name, form in FORMS.items()
        for order in ('atomics', 'in order')
    ],
    indirect=['order'],
)


@pytest.fixture
def order(request):
    torch.use_deterministic_algorithms(request.param == 'in order')
    yield request.param
    torch.use_deterministic_algorithms(False)


@outer_run
def test_under_interpreter(cases):
    run_under_interpreter(__file__, cases)


@every_device
@pytest.mark.parametrize(
    'shape',
    each_of(SHAPES, 'width 8', 'width 32', 'width 48', 'width 64', 'width 128'),
)
def test_against_reference(shape, device):
    triton, inputs = setup('triton', **shape, device=device)
    check_operator(triton, inputs)


@every_device
@every_form_and_order
def test_forms(form, order, device):
    shape = dict(shapes=((3, 4), (2, 1), (1, 1)), Q=7, B=2, M=1, D=6, P=3)
    triton, inputs = setup('triton', **shape, **form, device=device)
    check_operator(triton, inputs)


@every_device
@every_form
def test_reference_for_all_levels(form, device):
    triton, (*tensors, reference) = setup('triton', **SMALL, **form, device=device)
    if reference is not None:
        reference = reference[:, :, :1]
    check_operator(triton, [*tensors, reference])


@every_device
def test_softmax_in_parts(monkeypatch, device):
    """Logits that a program reads a few at a time, of which some are -inf, and some far
    from 0."""
    monkeypatch.setattr(triton_impl, 'LOGITS', 128)
    shape = dict(SMALL, P=9, D=16, Q=3)
    triton, inputs = setup('triton', **shape, fused=True, device=device)
    inputs[2][:, 0, :, 0] = float('-inf')
    inputs[2][:, 1] += 1000
    inputs[2][:, 2] -= 1000
    check_operator(triton, inputs)


@every_device
@pytest.mark.parametrize(
    'dtype, order',
    [
        (torch.float16, 'atomics'),
        seldom(torch.float16, 'in order'),
        seldom(torch.bfloat16, 'atomics'),
        (torch.bfloat16, 'in order'),
    ],
    indirect=['order'],
)
def test_half_precision(dtype, order, device):
    triton, inputs = setup('triton', **SMALL, fused=True, dtype=dtype, device=device)
    check_operator(triton, inputs)


@every_device
@pytest.mark.parametrize(
    'wanted, dtype',
    [
        seldom('value', torch.bfloat16),
        ('value', torch.float64),
        ('points', torch.bfloat16),
        seldom('points', torch.float64),
        ('reference', torch.bfloat16),
        ('reference', torch.float64),
    ],
)
def test_dtype_of_points_and_requires_grad_subset(wanted, dtype, device):
    storage = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    shape = dict(SMALL, fused=True, boxes=True, dtype=storage, points_dtype=dtype)
    triton, inputs = setup('triton', **shape, device=device)
    check_operator(triton, inputs, [name == wanted for name in NAMES])


@every_device
@pytest.mark.parametrize('layout', ['heads first', 'channels not last', 'expanded'])
def test_strides(layout, device):
    shape = dict(SMALL, B=2)
    triton, (value, points, weights, reference) = setup(
        'triton', **shape, fused=True, device=device
    )
    if layout == 'heads first':
        value = value.transpose(1, 2).contiguous().transpose(1, 2)
        points = points.transpose(1, 2).contiguous().transpose(1, 2)
    elif layout == 'channels not last':
        value = value.transpose(1, 3).contiguous().transpose(1, 3)
        weights = weights.mT.contiguous().mT
    else:
        value = value[:1].expand(2, -1, -1, -1)
        reference = reference[:, :1].expand(-1, 5, -1, -1)
    check_operator(triton, [value, points, weights, reference])


@every_device
def test_offsets_beyond_32_bits(device):
    """Pixels lie 2^30 elements apart; memory that nobody writes to is not taken."""
    S, D, gap = 4, 4, 2**30
    triton, inputs = setup(
        'triton', **dict(SMALL, shapes=((2, 2),), M=1), device=device
    )
    memory = torch.empty(3 * gap + D, dtype=torch.float16, device=device)
    far = memory.as_strided((1, S, 1, D), (0, gap, 0, 1))
    far.copy_(inputs[0])
    near = far.contiguous()
    results = [run_with_grads(triton, [value, *inputs[1:]]) for value in (near, far)]
    assert torch.equal(results[0][0], results[1][0])
    for n, f in zip(results[0][1][1:3], results[1][1][1:3], strict=True):
        assert torch.equal(n, f)


@every_device
@pytest.mark.parametrize('size', [dict(B=0), dict(Q=0)], ids=['batch', 'queries'])
@every_form
def test_none_of(size, form, device):
    triton, inputs = setup('triton', **(SMALL | size), **form, device=device)
    check_empty(triton, inputs, (*inputs[1].shape[:2], 8))


@every_device
@every_order
def test_places_on_and_between_pixels_and_outside(order, device):
    """At kinks of the gradients, only output and gradient of value are compared;
    sides of 4 and 8 make all places exact."""
    side = torch.tensor([-1e9, -1, -0.125, 0, 0.0625, 0.125, 0.5, 0.9375, 1, 1.125, 7])
    points = torch.cartesian_prod(side, side).to(device)[None, :, None, None, None]
    triton, (value, _, weights, _) = setup(
        'triton', shapes=((4, 8),), Q=len(side) ** 2, B=1, M=1, D=4, P=1, device=device
    )
    wanted = [True, False, True, False]
    check_operator(triton, [value, points, weights, None], wanted)


@every_device
@every_form_and_order
def test_places_that_are_not_finite(form, order, device):
    """They give and get nothing; so it is as if their values were 0."""
    shape = dict(SMALL, Q=6, P=2)
    triton, inputs = setup('triton', **shape, **form, device=device)
    points = inputs[1]
    bad = torch.zeros(points.shape[:-1], dtype=torch.bool, device=device)
    for q, number in enumerate([float('nan'), float('inf'), -float('inf'), 3e38]):
        points[:, q, :, :, 0, q % 2] = number
        bad[:, q, :, :, 0] = True
    out, grads = run_with_grads(triton, inputs)
    far = points.clone()
    far[bad] = 1e6  # outside of every map
    expected, expected_grads = run_with_grads(
        functools.partial(triton, backend='reference'),
        [inputs[0], far, *inputs[2:]],
        dtype=torch.float64,
    )
    assert_close('out', expected, out)
    for name, e, a in zip(NAMES, expected_grads, grads, strict=True):
        if e is not None:
            assert_close(name, e, a)
    assert grads[1][bad].abs().sum() == 0


@every_device
@pytest.mark.parametrize('number', [float('nan'), float('inf')], ids=str)
def test_reference_that_is_not_finite(number, device):
    triton, inputs = setup('triton', **SMALL, fused=True, boxes=True, device=device)
    inputs[3][:, 1, :, 2] = number  # the width of a box
    out, grads = run_with_grads(triton, inputs)
    assert out[:, 1].abs().sum() == 0 and out.isfinite().all()
    for grad in grads:
        assert grad.isfinite().all()
    for grad in grads[1:]:
        assert grad[:, 1].abs().sum() == 0


@every_device
@pytest.mark.parametrize('where', ['value', 'weights'])
def test_nan_reaches_what_sees_it_only(where, device):
    """The queries that look at the pixel; the query of the weight."""
    triton, inputs = setup('triton', **SMALL, device=device)
    hit = torch.zeros(1, 5, 2, dtype=torch.bool, device=device)
    if where == 'value':
        inputs[1] = torch.full_like(inputs[1], 0.2)  # inside of the first pixels
        inputs[1][:, 2, 1] = 5.0
        inputs[0][:, 0, 1] = float('nan')
        hit[:, [0, 1, 3, 4], 1] = True
    else:
        inputs[2][0, 3, 1, 0, 1] = float('nan')
        hit[:, 3, 1] = True
    out, _ = run_with_grads(triton, inputs)
    out = out.view(1, 5, 2, 4)
    assert out[hit].isnan().all() and out[~hit].isfinite().all()


@every_device
def test_in_order_by_parts(monkeypatch, device):
    """Bit by bit the same, however many images and heads are sorted at a time."""
    shape = dict(shapes=((2, 1),), Q=4, B=3, M=2, D=2, P=2)  # 8 points of a head
    triton, inputs = setup('triton', **shape, fused=True, device=device)
    torch.use_deterministic_algorithms(True)
    try:
        _, whole = run_with_grads(triton, inputs)
        for room in (1, 32):  # a head, two images
            monkeypatch.setattr(triton_impl, 'WORKSPACE', room)
            _, parts = run_with_grads(triton, inputs)
            for w, p in zip(whole, parts, strict=True):
                assert torch.equal(w, p)
    finally:
        torch.use_deterministic_algorithms(False)


def test_parts():
    assert list(triton_impl._parts(3, 3, 7)) == [(0, 2, 0, 3), (2, 1, 0, 3)]
    assert list(triton_impl._parts(2, 3, 2)) == [
        (0, 1, 0, 2), (0, 1, 2, 1), (1, 1, 0, 2), (1, 1, 2, 1)
    ]  # fmt: skip
    assert list(triton_impl._parts(1, 2, 0)) == [(0, 1, 0, 1), (0, 1, 1, 1)]


@seldom_interpreted
@every_device
def test_two_runs_are_equal(device):
    """All points of 20 queries near one pixel, so that its sum has many terms."""
    shape = dict(shapes=((3, 3),), Q=20, B=1, M=1, D=4, P=4)
    triton, inputs = setup('triton', **shape, device=device)
    inputs[1] = 0.5 + 0.1 * (inputs[1] - 0.5)
    check_repeatable(triton, inputs)
    check_operator(triton, inputs)


@every_device
def test_no_tensor_of_all_samples(monkeypatch, device):
    shape = dict(shapes=((3, 3), (2, 2)), Q=5, B=1, M=2, D=16, P=4)
    triton, inputs = setup('triton', **shape, fused=True, device=device)
    flat = [side for level in shape['shapes'] for side in level]
    with LargestTensor() as largest:
        out = triton_impl.forward(*inputs, shapes=flat)
    assert largest.numel <= inputs[0].numel()
    samples = 5 * 2 * 2 * 4 * 16  # points, and the channels of each
    monkeypatch.setattr(triton_impl, 'WORKSPACE', 5 * 2 * 4)
    for in_order in (False, True):
        torch.use_deterministic_algorithms(in_order)
        try:
            with LargestTensor() as largest:
                triton_impl.backward(out, *inputs, shapes=flat)
        finally:
            torch.use_deterministic_algorithms(False)
        assert largest.numel <= inputs[0].numel() < samples / 2


@every_device
@pytest.mark.parametrize(
    'change, reason',
    [
        (dict(dtype=torch.float64), 'float64'),
        (dict(D=257, M=1), 'at most 256 channels, got 257'),
        (dict(shapes=((1, 1),) * 9), 'at most 8 levels, got 9'),
        (dict(P=1025, Q=1), 'at most 2048 points, got 2050'),
        (dict(points_dtype=torch.float8_e5m2), 'float64, got float8_e5m2'),
    ],
    ids=['float64', 'width', 'levels', 'points', 'float8'],
)
def test_refusals(change, reason, device):
    shape = SMALL | change
    triton, inputs = setup('triton', **shape, fused=True, device=device)
    with pytest.raises(ValueError, match=reason):
        triton(*inputs)


@every_device
def test_refuses_pixels_that_32_bits_do_not_count(device):
    zeros = torch.zeros(1, 1, 1, 1, 1, 2, device=device)
    value = zeros[0, 0, ..., :1].expand(-1, 2**31, -1, -1)
    operands = value, [(2**16, 2**15)], zeros, zeros[..., 0]
    with pytest.raises(ValueError, match=r'fewer than 2\^31 pixels'):
        ms_deform_attn(*operands, backend='triton')


@every_device
def test_opcheck(device):
    shape = dict(shapes=((2, 3),), Q=2, B=1, M=1, D=2, P=1)
    triton, inputs = setup('triton', **shape, fused=True, device=device)
    inputs = [x.detach().requires_grad_() for x in inputs]
    opcheck(torch.ops.mmattn.ms_deform_attn, (*inputs, [2, 3], 'triton'), device)


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')


@pytest.mark.gpu
@on_gpu
@every_dtype
@every_real_call('ms_deform_attn')
def test_real_shapes(call, dtype):
    check_call(call, 'triton', dtype, 'cuda')
