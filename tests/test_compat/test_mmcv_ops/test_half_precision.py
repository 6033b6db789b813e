"""In half precision operators compute what they do for the same numbers in float64.

The files beside this one compare the latter with loops.
"""

import pytest
import torch
from mmcv import ops as mmcv_ops
from same_results import assert_same

pytestmark = pytest.mark.usefixtures('our_ops')

ROIS = torch.tensor([[0, 1.25, 0.75, 9, 8.25], [1, -3, -2, 16.5, 12]])
BINS, SCALE = (2, 3), 0.5
MAPS = 2, 8, 5, 7


# A function, and the shapes of the tensors that it takes.
OPERATORS = {
    'carafe': (lambda *x: mmcv_ops.carafe(*x, 3, 1, 2), [(1, 2, 3, 4), (1, 9, 6, 8)]),
    'roi_align': (
        lambda x: mmcv_ops.roi_align(x, ROIS.to(x), BINS, SCALE, 2, 'avg', True),
        [MAPS],
    ),
    'roi_pool': (lambda x: mmcv_ops.roi_pool(x, ROIS.to(x), BINS, SCALE), [MAPS]),
    'deform_roi_pool': (
        lambda x, offset: mmcv_ops.deform_roi_pool(
            x, ROIS.to(x), offset, BINS, SCALE, 2, 0.1
        ),
        [MAPS, (2, 2, *BINS)],
    ),
    'psa_mask': (mmcv_ops.PSAMask('collect', (3, 5)), [(2, 15, 3, 4)]),
    'sigmoid_focal_loss': (
        lambda x: mmcv_ops.sigmoid_focal_loss(
            x, torch.arange(7) % 5, 2.0, 0.3, None, 'none'
        ),
        [(7, 4)],
    ),
    'deform_conv2d': (
        lambda *x: mmcv_ops.deform_conv2d(*x),
        [(2, 4, 5, 6), (2, 12, 3, 5), (6, 4, 3, 2)],
    ),
    'modulated_deform_conv2d': (
        lambda *x: mmcv_ops.modulated_deform_conv2d(*x),
        [(2, 4, 5, 6), (2, 12, 3, 5), (2, 6, 3, 5), (6, 4, 3, 2), (6,)],
    ),
}
DTYPES = torch.float16, torch.bfloat16


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('function', 'shapes'), OPERATORS.values(), ids=OPERATORS)
def test_half_precision(function, shapes, dtype):
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes
    ]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    output, expected = function(*tensors), function(*exact)
    assert output.dtype == dtype
    torch.testing.assert_close(output, expected.to(dtype))
    grads = torch.autograd.grad(output.sum(), tensors)
    expected_grads = torch.autograd.grad(expected.sum(), exact)
    for grad, wanted in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, wanted.to(dtype))


@pytest.mark.parametrize(('function', 'shapes'), OPERATORS.values(), ids=OPERATORS)
def test_channels_last_maps_are_read_as_others(function, shapes):
    tensors = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]
    last = [
        x.to(memory_format=torch.channels_last) if x.ndim == 4 else x for x in tensors
    ]
    assert_same(function(*last), function(*tensors), tensors)
