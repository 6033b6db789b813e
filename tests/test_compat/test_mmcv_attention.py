"""mmcv's multi-scale deformable attention runs on ours: module, function, extension."""

import inspect
import sys

import pytest
import torch
from mmcv.ops import multi_scale_deform_attn as mmcv_module

from mmattn.compat import IMPLEMENTATION
from mmattn.compat.mm_packages import correct_attention
from mmattn.compat.mmcv_ops import deform
from mmattn.ops.common.operator import Operator
from tools.benchmark.inputs import make_ms_deform_inputs
from tools.benchmark.tolerances import assert_close

LEVELS = [[7, 5], [4, 3]]
SHAPES, STARTS = torch.tensor(LEVELS), torch.tensor([0, 35])
is_served = sys.modules['mmcv._ext'].__spec__.origin == IMPLEMENTATION
if_served = pytest.mark.skipif(not is_served, reason='this mmcv was compiled')


@pytest.fixture
def calls(monkeypatch):
    """An entry for each call of our operator."""
    made, call = [], Operator.__call__

    def noted(self, *tensors, **settings):
        made.append(self.name)
        return call(self, *tensors, **settings)

    monkeypatch.setattr(Operator, '__call__', noted)
    return made


def theirs(value, locations, weights):
    function = inspect.unwrap(mmcv_module.multi_scale_deformable_attn_pytorch)
    return function(value, SHAPES, locations, weights)


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
    assert calls == ['ms_deform_attn'] * 2


@if_served
def test_symbolic_trace_keeps_theirs(calls):
    class Caller(torch.nn.Module):
        def forward(self, value, locations, weights):
            attend = mmcv_module.multi_scale_deformable_attn_pytorch
            return attend(value * 2, LEVELS, locations, weights)

    module, tensors = Caller(), make_ms_deform_inputs(shapes=LEVELS)[:3]
    traced = torch.fx.symbolic_trace(module)
    out = traced(*tensors)
    assert not calls
    torch.testing.assert_close(out, module(*tensors))


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16], ids=str)
def test_function_of_the_extension(our_ops, dtype):
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
    grads = torch.autograd.grad(out.sum(), tensors)
    wanted = torch.autograd.grad(expected.sum(), exact)
    for grad, e in zip(grads, wanted, strict=True):
        assert grad.dtype == dtype
        assert_close('grad', e, grad)


def test_function_under_autocast_keeps_dtype(our_ops):
    value, locations, weights, _ = make_ms_deform_inputs(shapes=LEVELS)
    with torch.autocast('cpu', torch.bfloat16):
        out = mmcv_module.MultiScaleDeformableAttnFunction.apply(
            value, SHAPES, STARTS, locations, weights, 64
        )
    assert out.dtype == torch.float32
    assert_close('out', theirs(value, locations, weights), out)


def test_levels_must_follow_one_another(our_ops):
    value, locations, weights, _ = make_ms_deform_inputs(shapes=LEVELS)
    for starts in ([0, 34], [12, 0]):
        with pytest.raises(ValueError, match='must follow one another'):
            our_ops.ms_deform_attn_forward(
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

    def test_a_backward_reads_what_the_forward_did(self, our_ops, reads):
        shapes, starts = SHAPES.clone(), STARTS.clone()
        inputs = make_ms_deform_inputs(shapes=LEVELS)
        value, locations, weights = (x.requires_grad_() for x in inputs[:3])
        out = mmcv_module.MultiScaleDeformableAttnFunction.apply(
            value, shapes, starts, locations, weights, 64
        )
        out.sum().backward()
        assert len(reads) == 1
