"""mmcv's multi-scale deformable attention runs on ours: module, function, extension."""

import gc
import inspect
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip('mmcv.ops')
from mmcv.ops import multi_scale_deform_attn as mmcv_module

from mmattn.compat import IMPLEMENTATION
from mmattn.compat.mmcv_attention import correct_attention
from mmattn.compat.mmcv_ops import deform
from mmattn.ops.operator import OPERATORS
from tools.benchmark.inputs import make_ms_deform_inputs
from tools.benchmark.tolerances import assert_close

LEVELS = [[7, 5], [4, 3]]
SHAPES, STARTS = torch.tensor(LEVELS), torch.tensor([0, 35])
operator = OPERATORS['ms_deform_attn']
is_served = sys.modules['mmcv._ext'].__spec__.origin == IMPLEMENTATION
if_served = pytest.mark.skipif(not is_served, reason='this mmcv was compiled')


@pytest.fixture
def calls(monkeypatch):
    """An entry for each call of our operator."""
    made, choose = [], operator.choose

    def count(*tensors, **kwargs):
        made.append(1)
        return choose(*tensors, **kwargs)

    monkeypatch.setattr(operator, 'choose', count)
    return made


def theirs(value, locations, weights):
    function = inspect.unwrap(mmcv_module.multi_scale_deformable_attn_pytorch)
    return function(value, SHAPES, locations, weights)


@if_served
def test_module_on_the_cpu(calls):
    torch.manual_seed(0)
    module = mmcv_module.MultiScaleDeformableAttention(
        16, num_heads=2, num_levels=2, num_points=3, dropout=0.0, batch_first=True
    )
    torch.nn.init.normal_(module.sampling_offsets.weight, std=0.1)
    torch.nn.init.normal_(module.attention_weights.weight, std=0.1)
    inputs = dict(
        query=torch.randn(2, 9, 16),
        value=torch.randn(2, 47, 16, requires_grad=True),
        reference_points=torch.rand(2, 9, 2, 2),
        spatial_shapes=SHAPES,
        level_start_index=STARTS,
    )
    results = []
    for function in ('ours', 'theirs'):
        if function == 'theirs':
            own = mmcv_module.multi_scale_deformable_attn_pytorch
            mmcv_module.multi_scale_deformable_attn_pytorch = own.__wrapped__
        try:
            out = module(**inputs)
            wanted = [inputs['value'], *module.parameters()]
            results.append((out, *torch.autograd.grad(out.square().sum(), wanted)))
        finally:
            if function == 'theirs':
                mmcv_module.multi_scale_deformable_attn_pytorch = own
        assert len(calls) == 1
    for a, e in zip(*results, strict=True):
        assert_close('result', e, a)


@if_served
def test_mmcv_is_corrected_once(calls):
    ours = mmcv_module.multi_scale_deformable_attn_pytorch
    correct_attention(mmcv_module)
    assert mmcv_module.multi_scale_deformable_attn_pytorch is ours
    assert not hasattr(ours.__wrapped__, '__wrapped__')
    value, locations, weights, _ = make_ms_deform_inputs(shapes=LEVELS)
    for dtype in (torch.float32, torch.bfloat16):
        out = ours(value.to(dtype), SHAPES, locations, weights)
        assert out.dtype == dtype
        assert_close('out', theirs(value.to(dtype).float(), locations, weights), out)
    assert len(calls) == 2


@if_served
class TestDerivatives:
    """Ours must keep every ability of mmcv's own function."""

    @pytest.fixture
    def tensors(self):
        inputs = make_ms_deform_inputs(shapes=LEVELS, dtype=torch.float64)[:3]
        return tuple(x[:1].clone() for x in inputs)

    @staticmethod
    def ours(*tensors):
        value, *samples = tensors
        function = mmcv_module.multi_scale_deformable_attn_pytorch
        return function(value, SHAPES, *samples)

    def test_double_backward(self, calls, tensors):
        leaves = [x.requires_grad_() for x in tensors]
        assert torch.autograd.gradgradcheck(self.ours, leaves, fast_mode=True)
        assert calls

    def test_func_grad(self, tensors):
        results = [
            torch.func.grad(lambda *x, f=f: f(*x).square().sum(), (0, 1, 2))(*tensors)
            for f in (self.ours, theirs)
        ]
        torch.testing.assert_close(*results)

    def test_jvp(self, tensors):
        tangents = tuple(torch.randn_like(x) for x in tensors)
        # Theirs supports forward mode from PyTorch 2.15 only.
        ahead, behind = (
            theirs(*(x + step * t for x, t in zip(tensors, tangents, strict=True)))
            for step in (1e-6, -1e-6)
        )
        expected = (ahead - behind) / 2e-6
        assert expected.abs().max() > 0.01
        actual = torch.func.jvp(self.ours, tensors, tangents)[1]
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-7)

    def test_symbolic_trace(self, tensors):
        class Caller(torch.nn.Module):
            def forward(self, value, locations, weights):
                attend = mmcv_module.multi_scale_deformable_attn_pytorch
                return attend(value * 2, LEVELS, locations, weights)

        module = Caller()
        traced = torch.fx.symbolic_trace(module)
        torch.testing.assert_close(traced(*tensors), module(*tensors))


def test_a_compiled_mmcv_keeps_its_function(monkeypatch):
    compiled = SimpleNamespace(__spec__=SimpleNamespace(origin='/mmcv/_ext.so'))
    monkeypatch.setitem(sys.modules, 'mmcv._ext', compiled)
    module = SimpleNamespace(multi_scale_deformable_attn_pytorch=theirs)
    correct_attention(module)
    assert module.multi_scale_deformable_attn_pytorch is theirs


@pytest.mark.parametrize(
    'dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_function_of_the_extension(served_ops, dtype):
    inputs = make_ms_deform_inputs(shapes=LEVELS, dtype=torch.float64)[:3]
    tensors = [x.to(dtype).requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    value, locations, weights = tensors
    out = mmcv_module.MultiScaleDeformableAttnFunction.apply(
        value, SHAPES, STARTS, locations, weights, 64
    )
    expected = theirs(*exact)
    assert out.dtype == dtype
    assert_close('out', expected, out)
    cotangent = torch.ones_like(out)
    for a, e in zip(
        torch.autograd.grad(out, tensors, cotangent),
        torch.autograd.grad(expected, exact, cotangent.double()),
        strict=True,
    ):
        assert a.dtype == dtype
        assert_close('grad', e, a)


def test_function_under_autocast_keeps_dtype(served_ops):
    value, locations, weights, _ = make_ms_deform_inputs(shapes=LEVELS)
    with torch.autocast('cpu', torch.bfloat16):
        out = mmcv_module.MultiScaleDeformableAttnFunction.apply(
            value, SHAPES, STARTS, locations, weights, 64
        )
    assert out.dtype == torch.float32
    assert_close('out', theirs(value, locations, weights), out)


def test_levels_must_follow_one_another(served_ops):
    value, locations, weights, _ = make_ms_deform_inputs(shapes=LEVELS)
    for starts in ([0, 34], [12, 0]):
        with pytest.raises(ValueError, match='must follow one another'):
            served_ops.ms_deform_attn_forward(
                value, SHAPES, torch.tensor(starts), locations, weights, im2col_step=64
            )


class TestLevelsThatAreKept:
    @pytest.fixture(autouse=True)
    def elsewhere(self, monkeypatch):
        monkeypatch.setattr(deform, '_is_elsewhere', lambda tensor: True)

    @pytest.fixture
    def reads(self, monkeypatch):
        count, read = [], torch.Tensor.tolist
        monkeypatch.setattr(
            torch.Tensor, 'tolist', lambda x: (count.append(1), read(x))[1]
        )
        return count

    def test_all_layers_read_once(self, reads):
        shapes, starts = SHAPES.clone(), STARTS.clone()
        for _ in range(6):
            assert deform.levels_of(shapes, starts) == LEVELS
        assert len(reads) == 1

    def test_what_is_new_is_read(self, reads):
        shapes, starts = SHAPES.clone(), STARTS.clone()
        deform.levels_of(shapes, starts)
        deform.levels_of(shapes, STARTS.clone())
        deform.levels_of(shapes.clone(), starts)
        assert len(reads) == 3
        shapes[1, 1] = 6
        assert deform.levels_of(shapes, starts) == [[7, 5], [4, 6]]
        starts[1] = 34
        with pytest.raises(ValueError, match='must follow'):
            deform.levels_of(shapes, starts)

    def test_inference_tensors_are_read_each_time(self, reads):
        with torch.inference_mode():
            shapes, starts = SHAPES.clone(), STARTS.clone()
            deform.levels_of(shapes, starts)
            shapes[1, 1] = 6
            assert deform.levels_of(shapes, starts)[1] == [4, 6]

    def test_nothing_outlives_the_tensors(self):
        shapes, starts = SHAPES.clone(), STARTS.clone()
        deform.levels_of(shapes, starts)
        before = len(deform._LEVELS)
        del shapes
        gc.collect()
        assert len(deform._LEVELS) == before - 1

    def test_a_backward_reads_what_the_forward_did(self, served_ops, reads):
        shapes, starts = SHAPES.clone(), STARTS.clone()
        inputs = make_ms_deform_inputs(shapes=LEVELS)
        value, locations, weights = (x.requires_grad_() for x in inputs[:3])
        out = mmcv_module.MultiScaleDeformableAttnFunction.apply(
            value, shapes, starts, locations, weights, 64
        )
        out.sum().backward()
        assert len(reads) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_module_on_a_gpu(dtype):
    torch.manual_seed(0)
    module = mmcv_module.MultiScaleDeformableAttention(
        64, num_heads=2, num_levels=2, num_points=3, dropout=0.0, batch_first=True
    )
    torch.nn.init.normal_(module.sampling_offsets.weight, std=0.1)
    inputs = [torch.randn(2, 9, 64), torch.randn(2, 47, 64), torch.rand(2, 9, 2, 2)]

    def run(device, dtype):
        query, value, reference = (x.to(device, dtype) for x in inputs)
        return module.to(device, dtype)(
            query,
            value=value,
            reference_points=reference,
            spatial_shapes=SHAPES.to(device),
            level_start_index=STARTS.to(device),
        )

    expected = run('cpu', torch.float64)
    actual = run('cuda', dtype).cpu()
    # mmcv rounds locations and weights, too; in pixels that is a few roundings.
    error = (actual.double() - expected).abs().max()
    assert error < 30 * torch.finfo(dtype).eps * expected.abs().max()
