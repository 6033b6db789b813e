"""Features in rotated boxes through mmcv's own functions, against loops."""

import math

import pytest
import torch
from pooling_loops import bilinear

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

SHAPE = 2, 8, 5, 7
BINS = 2, 3
SCALE = 0.5
# Inside, turned past a border, thinner than a pixel, far outside.
ROIS = [
    [0, 6.2, 4.7, 6.1, 5.3, 0.4],
    [1, 9.0, 3.0, 12.5, 8.0, -2.1],
    [1, 5.0, 6.0, 1.2, 7.0, 5.5],
    [0, 60.0, 60.0, 7.0, 4.0, 0.9],
]


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    return features.to(dtype).requires_grad_(), torch.tensor(ROIS, dtype=dtype)


def assert_same(output, expected, features, peer=None, **tolerances):
    """Compare outputs and gradients; a peer holds the features in float64."""
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(output.shape, generator=generator).bfloat16()
    torch.testing.assert_close(output, expected.to(output.dtype), **tolerances)
    grads = [
        torch.autograd.grad(o, x, direction.to(o.dtype))[0]
        for o, x in ((output, features), (expected, features if peer is None else peer))
    ]
    torch.testing.assert_close(grads[0], grads[1].to(output.dtype), **tolerances)


def loop_pool(features, rois, ratio, shift, min_side, clockwise):
    pooled = []
    for image, *box, angle in rois.tolist():
        x, y, width, height = (SCALE * value for value in box)
        x, y = x - shift, y - shift
        width, height = max(width, min_side), max(height, min_side)
        cos, sin = math.cos(angle), math.sin(angle) * (-1 if clockwise else 1)
        step_y, step_x = height / BINS[0], width / BINS[1]
        rows, columns = ratio or math.ceil(step_y), ratio or math.ceil(step_x)
        for bin_y in range(BINS[0]):
            for bin_x in range(BINS[1]):
                samples = []
                for i in range(rows):
                    for j in range(columns):
                        down = (bin_y + (i + 0.5) / rows) * step_y - height / 2
                        right = (bin_x + (j + 0.5) / columns) * step_x - width / 2
                        at_y = y + down * cos - right * sin
                        at_x = x + down * sin + right * cos
                        samples.append(bilinear(features[int(image)], at_y, at_x))
                pooled.append(torch.stack(samples).mean(0))
    return torch.stack(pooled).view(len(rois), *BINS, -1).permute(0, 3, 1, 2)


@pytest.mark.parametrize('ratio', [0, 2], ids=['dense', 'ratio-2'])
@pytest.mark.parametrize('aligned', [True, False], ids=['aligned', 'legacy'])
@pytest.mark.parametrize('clockwise', [True, False])
def test_roi_align_rotated(clockwise, aligned, ratio):
    features, rois = inputs()
    layer = mmcv_ops.RoIAlignRotated(BINS, SCALE, ratio, aligned, clockwise)
    settings = (0.5, 0) if aligned else (0, 1)
    expected = loop_pool(features, rois, ratio, *settings, clockwise)
    assert_same(layer(features, rois), expected, features)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_roi_align_rotated_in_half_precision(dtype):
    features, rois = inputs(dtype)
    output = mmcv_ops.RoIAlignRotated(BINS, SCALE, 2)(features, rois)
    exact = features.detach().double().requires_grad_()
    expected = loop_pool(exact, rois.double(), 2, 0.5, 0, False)
    assert output.dtype == dtype
    assert_same(output, expected, features, exact)


def test_roi_align_rotated_without_boxes():
    features, rois = inputs()
    output = mmcv_ops.RoIAlignRotated(BINS, SCALE)(features, rois[:0])
    assert output.shape == (0, SHAPE[1], *BINS)
    assert not torch.autograd.grad(output.sum(), features)[0].any()


@pytest.mark.parametrize('ratio', [0, 2], ids=['dense', 'ratio-2'])
@pytest.mark.parametrize('clockwise', [True, False])
def test_riroi_align_rotated(clockwise, ratio):
    features, rois = inputs()
    orientations = 4
    layer = mmcv_ops.RiRoIAlignRotated(BINS, SCALE, ratio, orientations, clockwise)
    pooled = loop_pool(features, rois, ratio, 0, 1, clockwise)
    expected = []
    for roi, of_box in zip(rois.tolist(), pooled, strict=True):
        turn = roi[5] * orientations / (2 * math.pi)
        first = math.floor(turn)
        for c in range(SHAPE[1]):
            group, o = c // orientations * orientations, c % orientations
            near = of_box[group + (o - first) % orientations]
            far = of_box[group + (o - first + 1) % orientations]
            expected.append((1 - (turn - first)) * near + (turn - first) * far)
    expected = torch.stack(expected).view(pooled.shape)
    assert_same(layer(features, rois), expected, features)


@pytest.mark.parametrize('points', [1, 5])
def test_rotated_feature_align(points):
    features, _ = inputs()
    B, C, H, W = SHAPE
    generator = torch.Generator().manual_seed(2)
    boxes = torch.rand(B, H, W, 5, generator=generator, dtype=torch.float64)
    boxes = boxes * torch.tensor([14.0, 16, 8, 6, 6]) - torch.tensor([1.0, 1, 0, 0, 3])
    output = mmcv_ops.rotated_feature_align(features, boxes, SCALE, points)
    expected = []
    for b in range(B):
        for h in range(H):
            for w in range(W):
                y, x, width, height = (SCALE * v for v in boxes[b, h, w, :4].tolist())
                cos, sin = (
                    f(boxes[b, h, w, 4].item()) / 2 for f in (math.cos, math.sin)
                )
                total = features[b, :, h, w] + bilinear(features[b], y, x)
                if points == 5:
                    for i in (-1, 1):
                        for j in (-1, 1):
                            at_x = x + i * cos * width - j * sin * height
                            at_y = y + i * sin * width + j * cos * height
                            total = total + bilinear(features[b], at_y, at_x)
                expected.append(total)
    expected = torch.stack(expected).view(B, H, W, C).permute(0, 3, 1, 2)
    assert_same(output, expected, features)


def test_active_rotated_filter():
    generator = torch.Generator().manual_seed(0)
    shape = 3, 2, 4, 3, 3  # filters, inputs, orientations, height, width
    filters = torch.randn(shape, generator=generator, dtype=torch.float64)
    filters.requires_grad_()
    entries, turns = 4 * 9, 5
    places = torch.stack(
        [torch.randperm(entries, generator=generator) for _ in range(turns)], 1
    )
    indices = (places + 1).int().view(4, 3, 3, turns)
    output = mmcv_ops.active_rotated_filter(filters, indices)
    expected = torch.zeros(3, turns, 2, entries, dtype=torch.float64)
    for entry in range(entries):
        for k in range(turns):
            expected[:, k, :, places[entry, k]] = filters.flatten(2)[..., entry]
    assert_same(output, expected.view(3 * turns, 2 * 4, 3, 3), filters)
