"""RoIAlign through mmcv's own function, against loops over bins and samples."""

import math

import pytest
import torch
from pooling_loops import bilinear

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

SHAPE = 2, 3, 5, 7
BINS = 2, 3
SCALE = 0.5
# Inside, reaching past two borders, thinner than a pixel, far outside.
ROIS = [
    [0, 1.2, 0.7, 9.1, 8.3],
    [1, -3.0, -2.0, 16.5, 12.0],
    [1, 4.0, 3.0, 4.6, 9.0],
    [0, 60.0, 60.0, 70.0, 64.0],
]


def loop_roi_align(features, rois, ratio, mode, aligned):
    pooled = []
    for image, *box in rois.tolist():
        x1, y1, x2, y2 = (SCALE * value - 0.5 * aligned for value in box)
        height, width = y2 - y1, x2 - x1
        if not aligned:
            height, width = max(height, 1), max(width, 1)
        step_y, step_x = height / BINS[0], width / BINS[1]
        number_y, number_x = ratio or math.ceil(step_y), ratio or math.ceil(step_x)
        for bin_y in range(BINS[0]):
            for bin_x in range(BINS[1]):
                samples = []
                for i in range(number_y):
                    y = y1 + (bin_y + (i + 0.5) / number_y) * step_y
                    for j in range(number_x):
                        x = x1 + (bin_x + (j + 0.5) / number_x) * step_x
                        samples.append(bilinear(features[int(image)], y, x))
                samples = torch.stack(samples)
                pooled.append(samples.mean(0) if mode == 'avg' else samples.amax(0))
    return torch.stack(pooled).view(len(rois), *BINS, -1).permute(0, 3, 1, 2)


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    return features.to(dtype).requires_grad_(), torch.tensor(ROIS, dtype=dtype)


def gradient(output, features):
    generator = torch.Generator().manual_seed(1)
    # Every dtype holds the same direction.
    direction = torch.randn(output.shape, generator=generator).bfloat16()
    return torch.autograd.grad(output, features, direction.to(output.dtype))[0]


@pytest.mark.parametrize('mode', ['avg', 'max'])
@pytest.mark.parametrize('ratio', [0, 2], ids=['dense', 'ratio-2'])
@pytest.mark.parametrize('aligned', [True, False], ids=['aligned', 'legacy'])
def test_roi_align(aligned, ratio, mode):
    features, rois = inputs()
    output = mmcv_ops.roi_align(features, rois, BINS, SCALE, ratio, mode, aligned)
    expected = loop_roi_align(features, rois, ratio, mode, aligned)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradient(output, features), gradient(expected, features))


@pytest.mark.parametrize('mode', ['avg', 'max'])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_roi_align_under_autocast(dtype, mode):
    """Half precision features with float32 boxes, computed in float32."""
    features, rois = inputs(dtype)
    with torch.autocast('cpu', dtype):
        output = mmcv_ops.roi_align(features, rois.float(), BINS, SCALE, 2, mode, True)
    exact = features.detach().double().requires_grad_()
    expected = loop_roi_align(exact, rois.double(), 2, mode, True)
    assert output.dtype == dtype
    torch.testing.assert_close(output, expected.to(dtype))
    # mmcv keeps the places of the maxima in the features' dtype.
    if mode == 'avg':
        grad = gradient(output, features)
        assert grad.dtype == dtype
        torch.testing.assert_close(grad, gradient(expected, exact).to(dtype))


@pytest.mark.parametrize('mode', ['avg', 'max'])
def test_no_boxes(mode):
    features, rois = inputs()
    output = mmcv_ops.roi_align(features, rois[:0], BINS, SCALE, 0, mode, True)
    assert output.shape == (0, SHAPE[1], *BINS)
    assert not gradient(output, features).any()


@pytest.mark.parametrize('mode', ['avg', 'max'])
def test_box_without_area_gives_zero(mode):
    features, _ = inputs()
    rois = torch.tensor([[0.0, 2, 2, 2, 6]], dtype=torch.float64)
    output = mmcv_ops.roi_align(features, rois, BINS, SCALE, 0, mode, True)
    assert not output.any()
    assert not gradient(output, features).any()


@pytest.mark.parametrize('mode', ['avg', 'max'])
@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_box_that_is_not_finite_changes_no_other(value, mode):
    features, rois = inputs()
    expected = mmcv_ops.roi_align(features, rois, BINS, SCALE, 0, mode, True)
    broken = torch.cat([torch.full((1, 5), value), rois])
    broken[0, 0] = 0
    output = mmcv_ops.roi_align(features, broken, BINS, SCALE, 0, mode, True)
    torch.testing.assert_close(output[1:], expected)
    assert gradient(output, features).isfinite().all()
