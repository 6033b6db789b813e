"""Every operator decomposes into operators of PyTorch, and runs in ONNX Runtime."""

import importlib

import pytest
import torch
from export_checks import OnnxSession, decomposed
from torch import nn

from mmattn import ops
from mmattn.ops.autograd import DECOMPOSITIONS
from mmattn.ops.testing import assert_close

EXAMPLES = {
    'deformable_attention_v2': 'deformable_attention.v2_example_inputs',
    'landmark_attention': 'landmark_attention.example_inputs',
    'masked_attention': 'masked_attention.example_inputs',
    'ms_deform_attn': 'ms_deform_attn.example_inputs',
    'neighborhood_attention': 'neighborhood_attention.example_inputs',
    'structure_aware_attention': 'structure_aware_attention.example_inputs',
}


class Call(nn.Module):
    """Call an operator with the tensors of an example, or others of their shapes."""

    def __init__(self, name):
        super().__init__()
        room, function = EXAMPLES[name].split('.')
        room = importlib.import_module(f'mmattn.ops.{room}')
        self.args, self.settings = getattr(room, function)()
        self.operator = getattr(ops, name)
        values = (*self.args, *self.settings.values())
        self.tensors = tuple(x for x in values if isinstance(x, torch.Tensor))

    def forward(self, *tensors):
        tensors = iter(tensors)
        args, values = (
            [next(tensors) if isinstance(x, torch.Tensor) else x for x in given]
            for given in (self.args, self.settings.values())
        )
        return self.operator(*args, **dict(zip(self.settings, values, strict=True)))


def test_every_operator_has_a_decomposition():
    forwards = {
        f'mmattn::{name}'
        for name in vars(torch.ops.mmattn)
        if hasattr(torch.ops.mmattn, f'{name}_backward')
    }
    assert {operator.name() for operator in DECOMPOSITIONS} == forwards


@pytest.mark.parametrize('name', EXAMPLES)
def test_decomposed_operator(name):
    call = Call(name)
    expected = call.operator(*call.args, **call.settings, backend='reference')
    assert_close('out', expected, decomposed(call, call.tensors)(*call.tensors))


@pytest.mark.parametrize('name', EXAMPLES)
def test_operator_in_onnx_runtime(name):
    call = Call(name)
    expected = call.operator(*call.args, **call.settings, backend='reference')
    (out,) = OnnxSession(call, call.tensors)(*call.tensors)
    assert_close('out', expected, out)
