"""Overlaps and lane NMS through mmcv's own functions, against loops."""

import pytest
import torch

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')


def random_boxes(number, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(number, 2, generator=generator, dtype=torch.float64) * 10
    size = torch.rand(number, 2, generator=generator, dtype=torch.float64) * 10 + 1
    return torch.cat([corner, corner + size], 1).to(dtype)


def loop_overlap(a, b, mode, offset):
    width = max(min(a[2], b[2]) - max(a[0], b[0]) + offset, 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]) + offset, 0)
    first, second = (
        (x2 - x1 + offset) * (y2 - y1 + offset) for x1, y1, x2, y2 in (a, b)
    )
    union = first + second - width * height if mode == 'iou' else first
    return width * height / union


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('mode', ['iou', 'iof'])
@pytest.mark.parametrize(('N', 'M'), [(5, 7), (1, 3), (0, 4), (4, 0)], ids=str)
def test_bbox_overlaps(N, M, mode, offset):
    first, second = random_boxes(N), random_boxes(M, seed=1)
    expected = [
        [loop_overlap(a, b, mode, offset) for b in second.tolist()]
        for a in first.tolist()
    ]
    overlaps = mmcv_ops.bbox_overlaps(first, second, mode, False, offset)
    torch.testing.assert_close(overlaps, first.new_tensor(expected).view(N, M))
    if N and M:
        number = min(N, M)
        pairs = mmcv_ops.bbox_overlaps(
            first[:number], second[:number], mode, True, offset
        )
        torch.testing.assert_close(pairs, overlaps.diag())


def test_bbox_overlaps_in_half_precision():
    boxes = random_boxes(5, dtype=torch.float16)
    overlaps = mmcv_ops.bbox_overlaps(boxes, boxes)
    expected = mmcv_ops.bbox_overlaps(boxes.double(), boxes.double())
    assert overlaps.dtype == torch.float16
    torch.testing.assert_close(overlaps, expected.half())


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


@pytest.mark.parametrize('top_k', [3, 100])
@pytest.mark.parametrize('number', [0, 1, 30])
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


def test_line_nms_ignores_lanes_without_common_rows():
    lanes = torch.zeros(3, 77)
    lanes[:, 4] = torch.tensor([20.0, 20, 0])
    lanes[1, 2] = 0.5
    scores = torch.tensor([0.9, 0.8, 0.7])
    keep, count, _ = mmcv_ops.line_nms(lanes, scores, 1.0, 5)
    assert keep[:count].tolist() == [0, 1, 2]


def test_line_nms_of_lanes_that_begin_below_the_image():
    lanes = torch.zeros(2, 77)
    lanes[:, 2], lanes[:, 4] = -0.5, 60
    keep, count, _ = mmcv_ops.line_nms(lanes, torch.tensor([0.9, 0.8]), 1.0, 5)
    assert keep[:count].tolist() == [0, 1]


def test_line_nms_removes_a_lane_once():
    lanes = torch.zeros(3, 77)
    lanes[:, 4], lanes[:, 5:] = 72, torch.tensor([[0.0], [1], [2]])
    scores = torch.tensor([0.9, 0.8, 0.7])
    keep, count, parents = mmcv_ops.line_nms(lanes, scores, 1.5, 5)
    assert keep[:count].tolist() == [0, 2] and parents.tolist() == [1, 1, 2]


def test_line_nms_refuses_other_lanes():
    with pytest.raises(ValueError, match=r'\(N, 77\), got \(2, 70\)'):
        mmcv_ops.line_nms(torch.zeros(2, 70), torch.zeros(2), 1.0, 5)
