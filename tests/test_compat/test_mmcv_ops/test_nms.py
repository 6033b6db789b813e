"""NMS and its relatives through mmcv's own functions, against loops over the boxes."""

import math

import pytest
import torch
from mmcv import ops as mmcv_ops

pytestmark = pytest.mark.usefixtures('our_ops')


SIZES = {'no-box': 0, 'many': 60}


def random_boxes(number, seed=0):
    """Boxes that overlap a lot, with scores all different."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(number, 2, generator=generator) * 20
    size = torch.rand(number, 2, generator=generator) * 20 + 1
    scores = (torch.randperm(number, generator=generator) + 1) / (number + 1)
    return torch.cat([corner, corner + size], 1), scores


def overlap(a, b, offset=0):
    width = min(a[2], b[2]) - max(a[0], b[0]) + offset
    height = min(a[3], b[3]) - max(a[1], b[1]) + offset
    area = [(x2 - x1 + offset) * (y2 - y1 + offset) for x1, y1, x2, y2 in (a, b)]
    inter = max(width, 0) * max(height, 0)
    return inter / (area[0] + area[1] - inter)


def loop_nms(boxes, scores, threshold, offset=0):
    boxes, kept = boxes.tolist(), []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        if all(overlap(boxes[i], boxes[j], offset) <= threshold for j in kept):
            kept.append(i)
    return kept


def loop_soft_nms(boxes, scores, threshold, sigma, min_score, method, offset):
    boxes, remaining, kept = boxes.tolist(), dict(enumerate(scores.tolist())), []
    while remaining:
        best = max(remaining, key=remaining.get)
        kept.append((best, remaining.pop(best)))
        for i in list(remaining):
            iou = overlap(boxes[best], boxes[i], offset)
            if method == 'gaussian':
                remaining[i] *= math.exp(-(iou**2) / sigma)
            elif iou >= threshold:
                remaining[i] *= 0 if method == 'naive' else 1 - iou
            if remaining[i] < min_score:
                del remaining[i]
    return kept


@pytest.mark.parametrize('number', SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(('offset', 'threshold'), [(0, 0.3), (1, 0.7)])
def test_nms(number, offset, threshold):
    boxes, scores = random_boxes(number)
    dets, kept = mmcv_ops.nms(boxes, scores, threshold, offset=offset)
    assert kept.tolist() == loop_nms(boxes, scores, threshold, offset)
    torch.testing.assert_close(dets, torch.cat([boxes, scores[:, None]], 1)[kept])


@pytest.mark.parametrize(('width', 'threshold'), [(2, 1 / 3), (6, 5 / 7)])
def test_nms_keeps_an_overlap_of_exactly_the_threshold(width, threshold):
    boxes = torch.tensor([[0.0, 0, width, 2], [1, 0, width + 1, 2]])
    assert overlap(*boxes.tolist()) == pytest.approx(threshold)
    _, kept = mmcv_ops.nms(boxes, torch.tensor([0.9, 0.8]), threshold)
    assert kept.tolist() == [0, 1]


@pytest.mark.parametrize('number', SIZES.values(), ids=SIZES)
@pytest.mark.parametrize('offset', [0, 1], ids=['offset-0', 'offset-1'])
@pytest.mark.parametrize('method', ['naive', 'linear', 'gaussian'])
def test_soft_nms(number, offset, method):
    boxes, scores = random_boxes(number)
    arguments = {'sigma': 0.5, 'min_score': 0.05, 'method': method, 'offset': offset}
    dets, kept = mmcv_ops.soft_nms(boxes, scores, 0.3, **arguments)
    expected = loop_soft_nms(boxes, scores, 0.3, **arguments)
    assert kept.tolist() == [index for index, _ in expected]
    torch.testing.assert_close(dets[:, :4], boxes[kept])
    torch.testing.assert_close(dets[:, 4].tolist(), [score for _, score in expected])


def test_soft_nms_on_boxes_without_area():
    """mmcv's example: equal scores, and boxes whose overlap is 0 / 0."""
    boxes = torch.tensor([[4.0, 3, 5, 3], [4, 3, 5, 4], *[[3.0, 1, 3, 1]] * 4])
    scores = torch.tensor([0.9, 0.9, 0.5, 0.5, 0.4, 0.0])
    dets, kept = mmcv_ops.soft_nms(boxes, scores, 0.6, sigma=0.5)
    assert kept.tolist() == [0, 1, 2, 3, 4]
    torch.testing.assert_close(dets[:, 4], scores[:5])


@pytest.mark.parametrize('number', SIZES.values(), ids=SIZES)
def test_nms_match(number):
    boxes, scores = random_boxes(number)
    groups = mmcv_ops.nms_match(torch.cat([boxes, scores[:, None]], 1), 0.4)
    remaining = scores.argsort(descending=True).tolist()
    expected = []
    while remaining:
        best = boxes[remaining[0]].tolist()
        joins = [i for i in remaining if overlap(best, boxes[i].tolist()) >= 0.4]
        expected.append(joins)
        remaining = [i for i in remaining if i not in joins]
    assert [group.tolist() for group in groups] == expected


def random_lanes(number):
    """Return lanes of different starts and lengths, several of them close."""
    generator = torch.Generator().manual_seed(0)
    lanes = torch.rand(number, 77, generator=generator)
    lanes[:, 4] *= 90
    lanes[:, 5:] += (lanes[:, 3:4] * 5).round() * 100
    scores = torch.randperm(number, generator=generator) / number
    return lanes, scores


def loop_is_close(a, b, threshold):
    starts = [int(lane[2] * 71 + 0.5) for lane in (a, b)]
    ends = [s + int(lane[4]) - 1 for s, lane in zip(starts, (a, b), strict=True)]
    rows = range(max(starts), min(*ends, 71) + 1)
    if not rows or rows[0] < 0:
        return False
    return sum(abs(a[5 + i] - b[5 + i]) for i in rows) < threshold * len(rows)


@pytest.mark.parametrize(('number', 'top_k'), [(0, 3), (30, 3), (30, 100)])
def test_line_nms(number, top_k):
    lanes, scores = random_lanes(number)
    keep, count, parents = mmcv_ops.line_nms(lanes, scores, 0.34, top_k)
    order = scores.argsort(descending=True).tolist()
    rows, removed = lanes.tolist(), set()
    expected, expected_parents = [], [0] * number
    for place, i in enumerate(order):
        if i in removed or len(expected) == top_k:
            continue
        expected.append(i)
        for j in order[place:]:
            if j == i or loop_is_close(rows[i], rows[j], 0.34):
                removed.add(j)
                expected_parents[j] = len(expected)
    assert keep[:count].tolist() == expected
    assert keep.shape == (number,) and not keep[count:].any()
    assert parents.tolist() == expected_parents
    if number == 30 and top_k == 100:
        assert 1 < count < number


def test_line_nms_refuses_other_lanes():
    with pytest.raises(ValueError, match=r'\(N, 77\), got \(2, 70\)'):
        mmcv_ops.line_nms(torch.zeros(2, 70), torch.zeros(2), 1.0, 5)
