"""Wrong tensors and settings of every operator, with the value in the error."""

import re

import pytest
import torch
from operator_cases import LEVELS, names_of, setup

from mmattn.ops import structure_aware_attention
from mmattn.ops.structure_aware_attention import rfft_grid
from tools.benchmark.inputs import make_structure_aware_inputs

# Tensor, shape, and what the error says. The shape ends an empty text and 'got '.
SHAPES = {
    'landmark_attention': [
        ('q', (2, 63, 24), ''),
        ('k', (2, 62, 3, 8), ''),
        ('v', (2, 63, 3, 7), ''),
        ('q_landmarks', (2, 9, 4, 8), ''),
        ('k_landmarks', (1, 9, 3, 8), ''),
        ('w1_q', (3, 4), ''),
        ('w2_q', (3, 4), ''),
        ('w1_k', (3,), ''),
    ],
    'masked_attention': [
        ('k', (2, 35, 3, 8), ''),
        ('bias', (3, 5, 5), r'`bias` .*\(3, 3, 3\), got '),
        ('alpha', (2,), r'`alpha` .*\(3,\), got '),
    ],
    'structure_aware_attention': [
        ('k', (2, 34, 3, 8), ''),
        ('w_a', (8, 4, 5, 7), ''),
        ('w_b', (4, 7, 6), ''),
        ('bias', (8,), ''),
    ],
    'deformable_attention': [
        ('q', (2, 35, 32), '`q` .* 4 dimensions'),
        ('k', (2, 11, 4, 7), r'`k` .*\(2, 11, 4, 8\), got '),
        ('v', (2, 12, 4, 8), r'`v` .*\(2, 11, 4, 8\), got '),
        ('positions', (2, 2, 12, 2), r'`positions` .*\(2, 2, 11, 2\), got '),
        ('positions', (2, 3, 11, 2), 'divide the heads, got G=3 and M=4'),
        ('positions', (2, 0, 11, 2), 'G=0'),
        ('table', (3, 13, 9), r'`table` .*\(4, 13, 9\), got '),
        ('table', (4, 117), '`table` .* 3 dimensions'),
        ('table', (4, 0, 9), 'not be empty, got '),
    ],
    'ms_deform_attn': [
        ('value', (2, 48, 24), '`value` .* 4 dimensions'),
        ('points', (2, 13, 3, 3, 2, 3), r'`sampling_offsets` .*2, 2\), got '),
        ('points', (2, 13, 3, 3, 2), '`sampling_offsets` .* 6 dimensions'),
        ('weights', (2, 12, 3, 3, 2), r'`attention_logits` .*3, 3, 2\), got '),
        ('weights', (2, 13, 3, 6), '`attention_logits` .* 5 dimensions'),
        ('reference', (2, 13, 2, 2), r'`reference_points` .*\(2, 13, 3, 2\), got '),
        ('reference', (2, 12, 1, 4), r'`reference_points` .*\(2, 13, 1, 4\), got '),
        ('reference', (2, 13, 2), '`reference_points` .* 4 dimensions'),
    ],
    'neighborhood_attention': [
        ('k', (2, 9, 7, 3, 8), ''),
        ('v', (2, 9, 8, 3, 7), ''),
        ('rpb', (4, 9, 9), r'\(3, 9, 9\), got '),
        ('rpb', (3, 7, 7), 'odd K of at least 3, got '),
        ('rpb', (3, 1, 1), 'odd K of at least 3, got '),
        ('rpb', (3, 17, 17), '9x8 map is smaller than the 9x9 window'),
    ],
}
PARTS = {'landmark_attention': dict(E=3), 'ms_deform_attn': dict(fused=True)}


@pytest.mark.parametrize(
    'name, tensor, shape, message',
    [(name, *row) for name, rows in SHAPES.items() for row in rows],
    ids=str,
)
def test_wrong_shape(name, tensor, shape, message):
    function, inputs = setup(name, **PARTS.get(name, {}))
    inputs[names_of(name).index(tensor)] = torch.zeros(shape)
    if not message or message.endswith('got '):
        message += re.escape(str(shape))
    with pytest.raises(ValueError, match=message):
        function(*inputs)


@pytest.mark.parametrize(
    'name, axis',
    [
        *(('landmark_attention', axis) for axis in 'NLDM'),
        *(('deformable_attention', axis) for axis in 'KD'),
        *(('ms_deform_attn', axis) for axis in 'MDP'),
        *(('neighborhood_attention', axis) for axis in 'MD'),
        ('structure_aware_attention', 'K'),
    ],
)
def test_empty_axis(name, axis):
    function, inputs = setup(name, **{axis: 0})
    message = r'\(0, 7, 5\)' if name.startswith('structure') else f'{axis}=0'
    with pytest.raises(ValueError, match=message):
        function(*inputs)


@pytest.mark.parametrize(
    'name, settings, message',
    [
        ('masked_attention', dict(grid=(7, 6)), r'36 tokens, got .*\(7, 6\)'),
        ('masked_attention', dict(grid=(37, 1), num_special=-1), 'num_special=-1'),
        ('masked_attention', dict(grid=(35,)), r'\(35,\)'),
        ('masked_attention', dict(kernel_size=4), 'got 4'),
        ('masked_attention', dict(kernel_size=-1), 'got -1'),
        ('masked_attention', dict(mask_fill='inf'), "'zero', 'neg_inf'.*got 'inf'"),
        ('masked_attention', dict(masked_heads=4), 'at most 3.*got 4'),
        ('masked_attention', dict(masked_heads=-1), 'got -1'),
        ('masked_attention', dict(masked_heads=[-1]), r'got \[-1\]'),
        (
            'masked_attention',
            dict(masked_heads=2, global_bias=torch.zeros(1, 35, 35)),
            r'\(1, 36, 36\), got \(1, 35, 35\)',
        ),
        ('structure_aware_attention', dict(grid=(5, 7)), r'\(8, 4, 7, 5\)'),
        ('structure_aware_attention', dict(grid=(7, 6)), r'35 tokens, got \(7, 6\)'),
        ('structure_aware_attention', dict(grid=(1, 7, 5, 1)), r'\(1, 7, 5, 1\)'),
        ('deformable_attention', dict(grid=(7, 6)), '`grid` must have 35 queries'),
        ('deformable_attention', dict(grid=(5, 7, 1)), '`grid` must have 35 queries'),
        ('ms_deform_attn', dict(shapes=LEVELS[:2]), '48 pixels.* got 47'),
        *(
            ('ms_deform_attn', dict(shapes=shapes), 'a width of each level, got')
            for shapes in ([], [(7, 5, 1)], [(-7, -5)])
        ),
    ],
    ids=str,
)
def test_wrong_setting(name, settings, message):
    function, inputs = setup(name)
    with pytest.raises(ValueError, match=message):
        function(*inputs, **settings)


def test_soft_masks_have_no_bias_and_no_other_fill():
    function, inputs = setup('masked_attention', alpha=True, bias=True)
    with pytest.raises(ValueError, match=r'bias \(3, 3, 3\)'):
        function(*inputs)
    inputs[3] = None
    with pytest.raises(ValueError, match="'neg_inf'"):
        function(*inputs, mask_fill='neg_inf')


def test_half_a_mixing():
    function, inputs = setup('landmark_attention', E=3)
    with pytest.raises(ValueError, match='`w1_k` and `w2_k` must both'):
        function(*inputs[:-1], None)


def test_wrong_half_spectra():
    grid = (7, 5)
    inputs = make_structure_aware_inputs(grid=grid)
    halves = [*inputs[:3], *(rfft_grid(w, grid) for w in inputs[3:5]), inputs[5]]
    with pytest.raises(ValueError, match='`grid`, got None'):
        structure_aware_attention(*halves)
    with pytest.raises(ValueError, match='complex64 and float32'):
        structure_aware_attention(*halves[:4], *inputs[4:], grid=grid)
    with pytest.raises(ValueError, match=r'\(8, 4, 5, 4\).*got.*\(8, 4, 7, 3\)'):
        structure_aware_attention(*halves, grid=(5, 7))


@pytest.mark.parametrize(
    'name, position, message',
    [
        ('ms_deform_attn', 1, '`sampling_locations` .*int64'),
        ('deformable_attention', 3, '`positions` .*int64'),
    ],
)
def test_wrong_dtype_of_samples(name, position, message):
    function, inputs = setup(name)
    inputs[position] = inputs[position].long()
    with pytest.raises(ValueError, match=message):
        function(*inputs)
