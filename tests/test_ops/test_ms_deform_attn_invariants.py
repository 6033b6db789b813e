"""Properties of multi-scale deformable attention on the CPU for all numbers."""

import importlib

import pytest
import torch
from largest_tensor import LargestTensor
from ms_deform_cases import FORMS, LEVELS, NAMES, every_form, setup
from operator_checks import check_operator

from tools.benchmark.tolerances import assert_close, run_with_grads

torch_impl = importlib.import_module('mmattn.ops.ms_deform_attn.torch_impl')
torch_value_grad = importlib.import_module('mmattn.ops.ms_deform_attn.torch_value_grad')
both_names = pytest.mark.parametrize('name', ['reference', 'torch'])


@pytest.fixture(params=['all heads', 'each head'])
def way(request, monkeypatch):
    """Both ways of the backward, in blocks of a few queries."""
    monkeypatch.setattr(torch_impl, 'BLOCK_SAMPLES', 60)
    each = request.param == 'each head'
    monkeypatch.setattr(torch_impl, 'SAMPLES_OF_A_HEAD', 0 if each else 1 << 30)
    monkeypatch.setattr(torch_impl, 'SAMPLES_PER_PIXEL', 0)


@every_form
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
def test_both_ways_of_the_backward(way, form, dtype):
    check_operator(*setup('torch', **form, Q=31, dtype=dtype))


@pytest.mark.parametrize(
    'shape',
    [
        dict(shapes=((6, 7),), P=1),
        dict(shapes=((1, 63), (9, 1)), P=3),
        dict(shapes=((1, 1),), P=1),
        dict(shapes=((2, 2), (2, 1), (1, 2))),
    ],
    ids=str,
)
def test_both_ways_on_thin_maps(way, shape):
    check_operator(*setup('torch', fused=True, Q=31, **shape))
    function, inputs = setup('torch', fused=True, boxes=True, Q=31, **shape)
    inputs[3] = inputs[3][:, :, :1]
    check_operator(function, inputs)


@pytest.mark.parametrize('few', [0, 1 << 30], ids=['radix', 'comparisons'])
def test_sorting_of_few(way, few, monkeypatch):
    monkeypatch.setattr(torch_value_grad, 'FEW', few)
    check_operator(*setup('torch'))
    monkeypatch.setattr(torch_value_grad, 'SMALL_INDEX', 0)
    check_operator(*setup('torch'))


def test_rows_beyond_32_bits(way, monkeypatch):
    """Indices are then of 64 bits."""
    blocks = importlib.import_module('mmattn.ops.ms_deform_attn.torch_blocks')
    monkeypatch.setattr(blocks, 'LARGEST_INT32', 10)
    assert blocks.index_of(11) == torch.int64
    check_operator(*setup('torch', fused=True))


@both_names
@every_form
@pytest.mark.parametrize('number', [float('nan'), float('inf'), -float('inf'), 1e30])
def test_locations_that_are_nowhere(way, name, form, number):
    """They add nothing and have no gradient; all others are as they were."""
    function, inputs = setup(name, **form, dtype=torch.float64)
    points = inputs[1] = inputs[1].clone()
    points[0, 3, 1, 0, 0, 0] = points[1, 2, 0, 1, 1, 1] = number
    points[1, 5] = number
    away = torch.ones_like(points[..., 0], dtype=torch.bool)
    away[0, 3, 1, 0, 0] = away[1, 2, 0, 1, 1] = away[1, 5] = False
    out, grads = run_with_grads(function, inputs)
    assert out.isfinite().all() and not out[1, 5].any()
    for n, x in zip(NAMES[:3], grads, strict=False):
        assert x.isfinite().all(), n
    assert not grads[1][~away].any()
    if inputs[3] is None:
        assert not grads[2][~away].any()
        inputs[2] = inputs[2] * away
    elif inputs[3].shape[-1] == 2:
        assert grads[3].isfinite().all()
    inputs[1] = torch.where(away[..., None], points, 50.0)  # outside, but a place
    out_of_others, _ = run_with_grads(function, inputs)
    assert_close('out', out_of_others, out)


@both_names
def test_nan_in_a_pixel_reaches_what_reads_it(way, name):
    """With `cpu`, also what is outside the map and nearest to a window with it."""
    function, inputs = setup(name, shapes=((4, 8),), P=1, Q=32, B=1, D=2)
    value, points, _, _ = inputs
    y, x = torch.meshgrid(torch.arange(4), torch.arange(8), indexing='ij')
    middle = torch.stack([(x + 0.75) / 8, (y + 0.75) / 4], -1)  # between pixels
    inputs[1] = middle.view(1, 32, 1, 1, 1, 2).expand_as(points).contiguous()
    value[0, 2 * 8 + 3, 1] = float('nan')
    out, (grad_value, grad_points, _, _) = run_with_grads(function, inputs)
    hit = torch.zeros(4, 8, dtype=torch.bool)
    hit[1 : 4 if name == 'torch' else 3, 2:4] = True
    assert torch.equal(out.view(4, 8, 3, 2)[:, :, 1].isnan().all(-1), hit)
    assert out.view(32, 3, 2)[:, ::2].isfinite().all()
    assert grad_value.isfinite().all()
    assert torch.equal(grad_points[0, :, 1, 0, 0, 0].isnan().view(4, 8), hit)


@pytest.mark.parametrize('samples_of_a_head', [0, 1 << 30], ids=['each', 'all'])
def test_two_runs_are_equal(monkeypatch, samples_of_a_head):
    """Bit by bit, asked or not, large enough for two threads to share the work."""
    monkeypatch.setattr(torch_impl, 'SAMPLES_OF_A_HEAD', samples_of_a_head)
    monkeypatch.setattr(torch_impl, 'BLOCK_SAMPLES', 1 << 13)
    levels = ((20, 30), (10, 15))
    function, inputs = setup('torch', fused=True, shapes=levels, Q=2100, B=1, M=2, P=4)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runs = [run_with_grads(function, inputs) for _ in range(2)]
        torch.use_deterministic_algorithms(True)
        runs.append(run_with_grads(function, inputs))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    for out, grads in runs[1:]:
        assert torch.equal(out, runs[0][0])
        assert all(map(torch.equal, grads, runs[0][1]))


def test_no_tensor_of_all_samples_and_channels(monkeypatch):
    monkeypatch.setattr(torch_impl, 'BLOCK_SAMPLES', 1 << 10)
    D, Q = 64, 600
    levels = ((10, 12), (5, 6))
    _, inputs = setup('torch', shapes=levels, Q=Q, B=1, M=2, D=D, P=4)
    shapes = [side for level in levels for side in level]
    samples = Q * 2 * len(levels) * 4
    with LargestTensor() as largest:
        out = torch_impl.forward(*inputs, shapes=shapes)
    assert largest.numel <= out.numel() == Q * 2 * D
    with LargestTensor() as largest:
        torch_impl.backward(out, *inputs, shapes=shapes)
    assert largest.numel <= max(out.numel(), 4 * samples)  # not D * samples


@both_names
def test_order_of_queries_and_points_does_not_matter(name):
    function, inputs = setup(name, **FORMS['offsets in boxes'], dtype=torch.float64)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    value, *others = inputs
    out = function(*inputs)
    assert_close('out', out[:, order], function(value, *(x[:, order] for x in others)))
    value, points, weights, reference = inputs
    turned = function(value, points.flip(4), weights.flip(4), reference)
    assert_close('out', out, turned)


@both_names
def test_a_constant_map_is_its_constant(name):
    """All samples are inside, and weights sum to 1."""
    function, (value, points, weights, _) = setup(name, dtype=torch.float64)
    value = torch.full_like(value, 3.0)
    for level, (H, W) in enumerate(LEVELS):
        inner = torch.tensor([0.5 / W, 0.5 / H])
        points[:, :, :, level] = points[:, :, :, level].clamp(inner, 1 - inner)
    out, grads = run_with_grads(function, [value, points, weights, None])
    assert_close('out', torch.full_like(out, 3.0), out)
