"""The largest tensors of PyTorch's kernels, where maps of all pairs are larger."""

import pytest
from largest_tensor import LargestTensor
from operator_cases import setup_registered, take_form
from operator_checks import run_kernels

from mmattn.ops.structure_aware_attention import structure_aware_attention_reference

MASKED = dict(grid=(20, 25), num_special=1, M=2, D=16)
PAIRS = dict(grid=(40, 50), K=200, B=1, M=2, G=1)
SAMPLES = dict(shapes=((10, 12), (5, 6)), Q=600, B=1, M=2, D=64, P=4)
WINDOWS = dict(grid=(60, 50), K=7, B=1, M=1, D=32)
PATTERNS = dict(grid=(14, 14), B=16, M=4, D=16, K=8)
PIECES = (
    'common.pieces.ELEMENTS',
    'structure_aware_attention.torch_impl.CHUNK_ELEMENTS',
)
# The most elements, over those of the output.
CASES = {
    'masked': ('masked_attention', MASKED, 1.2),
    'masked, neg_inf': (
        'masked_attention', MASKED | dict(bias=True, mask_fill='neg_inf'), 1.2
    ),
    'masked, soft': ('masked_attention', MASKED | dict(alpha=True), 1.2),
    'deformable': ('deformable_attention', PAIRS, 1.5),
    'deformable, any table': (
        'deformable_attention', PAIRS | dict(table_size=(13, 13)), 1.5
    ),
    'ms-deform': ('ms_deform_attn', SAMPLES, 1),
    'neighborhood': ('neighborhood_attention', WINDOWS, 7),
    'structure-aware': ('structure_aware_attention', PATTERNS, 2),
}  # fmt: skip


@pytest.mark.parametrize('name, shape, most', CASES.values(), ids=CASES)
def test_no_tensor_is_much_larger_than_the_output(monkeypatch, name, shape, most):
    take_form(monkeypatch, dict.fromkeys(PIECES, 1 << 14))
    call = setup_registered(name, **shape)
    with LargestTensor() as largest:
        out = run_kernels(name, 'torch', *call)
    assert out.numel() <= largest.numel <= most * out.numel()


def test_the_definition_has_a_map_of_each_pattern():
    inputs, settings = setup_registered('structure_aware_attention', **PATTERNS)
    with LargestTensor() as largest:
        structure_aware_attention_reference(*inputs, **settings)
    assert largest.numel >= 8 * inputs[0].numel()
