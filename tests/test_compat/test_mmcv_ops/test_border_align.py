"""Pooling along borders and curves through mmcv's functions, against loops."""

import math

import pytest
import torch
from pooling_loops import bilinear

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

BINS = 2, 3


def random(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_same(output, expected, features):
    torch.testing.assert_close(output, expected)
    direction = random(*output.shape, seed=1)
    torch.testing.assert_close(
        *(torch.autograd.grad(o, features, direction)[0] for o in (output, expected))
    )


def loop_border_align(features, boxes, pool_size):
    rows = []
    C = features.size(1) // 4
    for b, of_image in enumerate(boxes.tolist()):
        for x1, y1, x2, y2 in of_image:
            for border in range(4):
                values = []
                for i in range(pool_size + 1):
                    t = i / pool_size
                    y, x = (
                        (y1, x1 + t * (x2 - x1)),
                        (y1 + t * (y2 - y1), x1),
                        (y2, x2 - t * (x2 - x1)),
                        (y2 - t * (y2 - y1), x2),
                    )[border]
                    maps = features[b, border * C : (border + 1) * C]
                    values.append(bilinear(maps, y, x))
                rows.append(torch.stack(values).amax(0))
    return torch.stack(rows).view(*boxes.shape[:2], 4, C).permute(0, 3, 1, 2)


@pytest.mark.parametrize('pool_size', [1, 4])
def test_border_align(pool_size):
    features = random(2, 12, 5, 6).requires_grad_()
    corner = random(2, 30, 2, seed=2).abs() * 3 - 0.9
    boxes = torch.cat([corner, corner + random(2, 30, 2, seed=3).abs() * 2], 2)
    output = mmcv_ops.BorderAlign(pool_size)(features, boxes)
    assert output.shape == (2, 3, 30, 4)
    assert_same(output, loop_border_align(features, boxes, pool_size), features)


def test_border_align_in_half_precision():
    features, boxes = (
        random(1, 8, 5, 6),
        torch.tensor([[[0.5, 0.5, 3, 4], [1, 2, 2, 9]]]),
    )
    output = mmcv_ops.border_align(features.half(), boxes.half(), 3)
    exact = loop_border_align(features.half().double(), boxes, 3)
    assert output.dtype == torch.float16
    torch.testing.assert_close(output, exact.half())


def curve(points, t):
    """De Casteljau's construction."""
    while len(points) > 1:
        pairs = zip(points, points[1:], strict=False)
        points = [
            [u + t * (v - u) for u, v in zip(a, b, strict=True)] for a, b in pairs
        ]
    return points[0]


def loop_bezier_align(features, beziers, ratio, aligned, scale):
    rows = []
    for image, *numbers in beziers.tolist():
        points = [[scale * v for v in numbers[i : i + 2]] for i in range(0, 16, 2)]
        upper, lower = points[:4], points[:3:-1]
        width, height = (
            max(abs(line[0][i] - line[3][i]) for line in (upper, lower)) for i in (0, 1)
        )
        if not aligned:
            width, height = max(width, 1), max(height, 1)
        step_y, step_x = height / BINS[0], width / BINS[1]
        number_y, number_x = ratio or math.ceil(step_y), ratio or math.ceil(step_x)
        for bin_y in range(BINS[0]):
            for bin_x in range(BINS[1]):
                u, v = bin_x / BINS[1], bin_y / BINS[0]
                ends = curve(upper, u), curve(lower, u)
                x, y = (
                    (1 - v) * a + v * b - 0.5 * aligned
                    for a, b in zip(*ends, strict=True)
                )
                samples = [
                    bilinear(
                        features[int(image)],
                        y + ((i + 0.5) / number_y - 0.5) * step_y,
                        x + ((j + 0.5) / number_x - 0.5) * step_x,
                    )
                    for i in range(number_y)
                    for j in range(number_x)
                ]
                rows.append(torch.stack(samples).mean(0))
    return torch.stack(rows).view(len(beziers), *BINS, -1).permute(0, 3, 1, 2)


@pytest.mark.parametrize('ratio', [0, 2], ids=['dense', 'ratio-2'])
@pytest.mark.parametrize('aligned', [True, False], ids=['aligned', 'legacy'])
def test_bezier_align(aligned, ratio):
    features = random(2, 3, 6, 9).requires_grad_()
    upper = torch.tensor([[1.0, 2], [4, 0], [8, 5], [14, 3]])
    lower = torch.tensor([[15.0, 9], [9, 12], [5, 8], [2, 10]])
    curves = torch.stack([upper, lower]).flatten().double()
    moves = random(4, 16, seed=3)
    images = torch.tensor([[0.0], [1], [1], [0]])
    beziers = torch.cat([images, curves + moves], 1)
    output = mmcv_ops.BezierAlign(BINS, 0.5, ratio, aligned)(features, beziers)
    expected = loop_bezier_align(features, beziers, ratio, aligned, 0.5)
    assert_same(output, expected, features)
