"""Multi-scale deformable attention's contracts: errors, compilation and export."""

import doctest
import importlib

import pytest
import torch
from ms_deform_cases import FORMS, LEVELS, attend, every_form, setup

from mmattn.ops import fused_ms_deform_attn, ms_deform_attn
from tools.benchmark.inputs import make_ms_deform_inputs
from tools.benchmark.tolerances import assert_close, run_with_grads


def call(value, points, weights, reference, levels=LEVELS, backend=None):
    return attend(value, levels, points, weights, reference, backend)


@pytest.mark.parametrize(
    'position, shape, message',
    [
        (0, (2, 48, 24), r'`value` .* 4 dimensions, got \(2, 48, 24\)'),
        (0, (2, 49, 3, 8), '`spatial_shapes` must have 49 pixels.* got 48'),
        (0, (2, 48, 4, 8), r'`sampling_locations` .*\(2, 13, 4, 3, 2, 2\), got'),
        (0, (2, 48, 0, 8), 'M=0'),
        (0, (2, 48, 3, 0), 'D=0'),
        (1, (3, 13, 3, 3, 2, 2), r'`sampling_locations` .*\(2, 13, 3, 3, 2, 2\), got'),
        (1, (2, 13, 3, 2, 2, 2), r'got \(2, 13, 3, 2, 2, 2\)'),
        (1, (2, 13, 3, 3, 2, 3), r'got \(2, 13, 3, 3, 2, 3\)'),
        (1, (2, 13, 3, 3, 0, 2), 'P=0'),
        (1, (2, 13, 3, 3, 2), '`sampling_locations` .* 6 dimensions'),
        (2, (2, 12, 3, 3, 2), r'`attention_weights` .*\(2, 13, 3, 3, 2\), got'),
        (2, (2, 13, 3, 6), '`attention_weights` .* 5 dimensions'),
    ],
)
def test_wrong_shape(position, shape, message):
    inputs = make_ms_deform_inputs()
    inputs[position] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        call(*inputs)


@pytest.mark.parametrize(
    'position, shape, message',
    [
        (1, (2, 13, 3, 2, 2, 2), 'sampling_offsets'),
        (2, (2, 13, 3, 2, 2), 'attention_logits'),
        (
            3,
            (2, 13, 2, 2),
            r'`reference_points` .*\(2, 13, 3, 2\), got \(2, 13, 2, 2\)',
        ),
        (
            3,
            (2, 13, 3, 3),
            r'`reference_points` .*\(2, 13, 3, 2\), got \(2, 13, 3, 3\)',
        ),
        (
            3,
            (2, 12, 1, 4),
            r'`reference_points` .*\(2, 13, 1, 4\), got \(2, 12, 1, 4\)',
        ),
        (3, (2, 13, 2), '`reference_points` .* 4 dimensions'),
    ],
)
def test_wrong_shape_of_the_fused_form(position, shape, message):
    inputs = make_ms_deform_inputs(fused=True)
    inputs[position] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        call(*inputs)


@pytest.mark.parametrize('levels', [[], [(7, 5, 1)], [(7, 5), (0, 3)], [(-7, -5)]])
def test_wrong_levels(levels):
    with pytest.raises(ValueError, match='height and a width of each level, got'):
        call(*make_ms_deform_inputs(), levels)


def test_wrong_dtype_and_device():
    value, points, weights, _ = make_ms_deform_inputs()
    with pytest.raises(ValueError, match='`value` .*int64'):
        call(value.long(), points, weights, None)
    with pytest.raises(ValueError, match='`sampling_locations` .*int32'):
        call(value, points.int(), weights, None)
    with pytest.raises(ValueError, match="one device.*'cpu', 'meta'"):
        call(value, points.to('meta'), weights, None)


def test_levels_from_a_tensor():
    inputs = make_ms_deform_inputs()
    expected = call(*inputs)
    for levels in (torch.tensor(LEVELS), [list(level) for level in LEVELS]):
        assert torch.equal(call(*inputs, levels), expected)


def test_unknown_backend_names_the_known_ones():
    with pytest.raises(ValueError, match="'torch', 'reference'.*got 'cudnn'"):
        call(*make_ms_deform_inputs(), backend='cudnn')


def test_cpu_backend_is_for_the_cpu():
    torch_impl = importlib.import_module('mmattn.ops.ms_deform_attn.torch_impl')
    assert torch_impl.unsupported(torch.empty(1)) is None

    class Elsewhere:
        device = torch.device('cuda:1')

    assert 'cuda:1' in torch_impl.unsupported(Elsewhere())


def test_backend_from_the_environment(monkeypatch):
    inputs = make_ms_deform_inputs()
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    assert torch.equal(call(*inputs), call(*inputs, backend='reference'))
    monkeypatch.setenv('MMATTN_BACKEND', 'nonsense')
    with pytest.raises(ValueError, match='nonsense'):
        call(*inputs)


@every_form
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64], ids=str)
def test_opcheck(form, dtype):
    inputs = make_ms_deform_inputs(dtype=dtype, **form)
    shapes = [side for level in LEVELS for side in level]
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    op = torch.ops.mmattn.ms_deform_attn
    torch.library.opcheck(op, (*leaves, shapes, 'torch'))
    out = op(*inputs, shapes, 'torch')
    op = torch.ops.mmattn.ms_deform_attn_backward
    torch.library.opcheck(op, (out, *inputs, shapes, 'torch'))


@every_form
def test_meta_tensors(form):
    inputs = make_ms_deform_inputs(device='meta', **form)
    out = call(*inputs, backend='torch')
    assert out.device.type == 'meta' and out.shape == (2, 13, 24)


@pytest.mark.parametrize(
    'compiler', ['aot_eager', pytest.param('inductor', marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('form', list(FORMS.values())[::2], ids=list(FORMS)[::2])
def test_compile_with_dynamic_queries(compiler, form):
    levels = LEVELS[:2]

    def function(value, points, weights, reference):
        return 2 * attend(1.5 * value, levels, points, weights, reference, 'torch')

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=compiler)
    for shape in (dict(), dict(Q=5), dict(Q=29, B=3)):
        inputs = make_ms_deform_inputs(shapes=levels, **shape, **form)
        expected, expected_grads = run_with_grads(function, inputs)
        out, grads = run_with_grads(compiled, inputs)
        assert_close('out', expected, out)
        for e, a in zip(expected_grads, grads, strict=True):
            assert e is None or assert_close('grad', e, a) is None


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.value = torch.nn.Linear(16, 16)
        self.offsets, self.logits = torch.nn.Linear(16, 24), torch.nn.Linear(16, 12)

    def forward(self, query, pixels, reference):
        value = self.value(pixels).unflatten(2, (2, 8))
        offsets = self.offsets(query).unflatten(2, (2, 3, 2, 2))
        logits = self.logits(query).unflatten(2, (2, 3, 2))
        return fused_ms_deform_attn(value, LEVELS, reference, offsets, logits)


def test_export():
    torch.manual_seed(0)
    module = Layer().eval()

    def example(B, Q):
        return torch.randn(B, Q, 16), torch.randn(B, 48, 16), torch.rand(B, Q, 1, 4)

    B, Q = torch.export.Dim('batch'), torch.export.Dim('queries')
    program = torch.export.export(
        module, example(2, 6), dynamic_shapes=({0: B, 1: Q}, {0: B}, {0: B, 1: Q})
    )
    inputs = example(3, 11)
    assert_close('out', module(*inputs), program.module()(*inputs))


def test_the_examples_in_the_docstrings_run():
    module = importlib.import_module('mmattn.ops.ms_deform_attn.interface')
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


@every_form
@pytest.mark.parametrize('name', ['reference', 'torch'])
def test_autocast_casts_value_to_its_dtype(name, form):
    function, (value, *others) = setup(name, **form)
    expected = function(value.bfloat16(), *others)
    with torch.autocast('cpu', torch.bfloat16):
        out = function(value, *others)
    assert out.dtype == torch.bfloat16 and torch.equal(expected, out)


@every_form
def test_backward_under_autocast(form):
    function, inputs = setup('torch', **form)
    leaves = [x.detach().requires_grad_() for x in inputs if x is not None]
    out = function(*leaves, *[None] * (4 - len(leaves)))
    expected = torch.autograd.grad(out, leaves, out, retain_graph=True)
    with torch.autocast('cpu', torch.bfloat16):
        grads = torch.autograd.grad(out, leaves, out)
    assert all(map(torch.equal, expected, grads))


def test_float64_value_keeps_its_precision():
    """Also with float32 locations, which are then exact."""
    value, points, weights, _ = make_ms_deform_inputs(dtype=torch.float64)
    points, weights = points.float(), weights.float()
    expected = ms_deform_attn(value, LEVELS, points.double(), weights.double())
    assert_close('out', expected, ms_deform_attn(value, LEVELS, points, weights))
