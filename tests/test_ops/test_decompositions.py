"""Every operator decomposes into operators of PyTorch, and runs in ONNX Runtime."""

import pytest
import torch
from export_checks import OnnxSession, own_operators
from torch import nn

import mmattn.export
from mmattn import ops
from mmattn.ops.ms_deform_attn.decomposition import ms_deform_attn_decomposition
from mmattn.ops.ms_deform_attn.reference import ms_deform_attn_reference
from mmattn.ops.operator import OPERATORS as REGISTERED
from mmattn.ops.structure_aware_attention.decomposition import (
    structure_aware_attention_decomposition,
)
from tools.benchmark.inputs import make_ms_deform_inputs, make_structure_aware_inputs
from tools.benchmark.real_shapes import OPERATORS, small_calls
from tools.benchmark.tolerances import assert_close

CALLS = [call for operator in OPERATORS for call in small_calls(operator)]
every_call = pytest.mark.parametrize('call', CALLS, ids=lambda call: call.operator)


class Graph(nn.Module):
    """Call an operator with tensors of the sizes of a small call, and several heads."""

    def __init__(self, call):
        super().__init__()
        self.call, self.inputs = call, call.make_tensors(B=2, M=3)
        self.tensors = tuple(x for x in self.inputs if x is not None)

    def forward(self, *tensors, backend=None):
        tensors = iter(tensors)
        inputs = [None if x is None else next(tensors) for x in self.inputs]
        return self.call.function(*inputs, backend=backend)

    def expected(self):
        return self(*self.tensors, backend='reference')


def test_every_operator_has_small_calls():
    assert set(OPERATORS) == set(REGISTERED)


@every_call
def test_decomposed_operator(call):
    call = Graph(call)
    program = torch.export.export(call, call.tensors)
    assert len(own_operators(program)) == 1
    program = program.run_decompositions(mmattn.export.decompositions())
    assert not own_operators(program)
    assert_close('out', call.expected(), program.module()(*call.tensors))


@every_call
def test_operator_in_onnx_runtime(call):
    call = Graph(call)
    (out,) = OnnxSession(call, call.tensors)(*call.tensors)
    assert_close('out', call.expected(), out)


@pytest.mark.parametrize('boxes', [False, True])
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16], ids=str)
def test_gathered_pixels(fused, boxes, dtype):
    """Compare with the definition, also far outside the map and on its borders."""
    shapes = [(7, 5), (4, 3), (1, 1)]
    tensors = make_ms_deform_inputs(
        shapes=shapes, fused=fused, boxes=boxes, dtype=dtype, B=2
    )
    points = tensors[1]
    places = torch.tensor([0, 1, -9, 9, 1e30, torch.inf, -torch.inf, torch.nan])
    points[0, : len(places), 0, :, 0, 0] = places[:, None].to(points)
    points[1, : len(places), 1, :, 1, 1] = places[:, None].to(points)
    sides = [side for shape in shapes for side in shape]
    expected = ms_deform_attn_reference(*tensors, shapes=sides)
    out = ms_deform_attn_decomposition(*tensors, shapes=sides)
    assert_close('out', expected, out)


@pytest.mark.parametrize(
    'grid', [(1,), (70,), (1, 1), (7, 5), (9, 8), (8, 9), (2, 3, 4), (3, 5, 6)], ids=str
)
def test_real_transforms(grid):
    """Compare with the backend of complex transforms, in float64."""
    tensors = make_structure_aware_inputs(grid=grid, dtype=torch.float64)
    *tokens, w_a, w_b, bias = (x.double() for x in tensors)
    expected = ops.structure_aware_attention(
        *tokens, w_a, w_b, bias, grid=grid, backend='reference'
    )
    dims = tuple(range(-len(grid), 0))
    w_a, w_b = (torch.view_as_real(torch.fft.rfftn(w, dim=dims)) for w in (w_a, w_b))
    out = structure_aware_attention_decomposition(*tokens, w_a, w_b, bias, grid=grid)
    assert_close('out', expected, out)
