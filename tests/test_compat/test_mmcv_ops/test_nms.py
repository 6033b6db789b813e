"""NMS and its relatives through mmcv's own functions, against loops over the boxes."""

import math

import numpy as np
import pytest
import torch

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

SIZES = {'no-box': 0, 'one-box': 1, 'few': 7, 'many': 60}


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
@pytest.mark.parametrize('offset', [0, 1], ids=['offset-0', 'offset-1'])
@pytest.mark.parametrize('threshold', [0.3, 0.7])
def test_nms(number, offset, threshold):
    boxes, scores = random_boxes(number)
    dets, kept = mmcv_ops.nms(boxes, scores, threshold, offset=offset)
    assert kept.tolist() == loop_nms(boxes, scores, threshold, offset)
    torch.testing.assert_close(dets, torch.cat([boxes, scores[:, None]], 1)[kept])


def test_nms_offset_changes_the_result():
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 9, 9]])
    scores = torch.tensor([0.9, 0.8, 0.7])
    # The first two overlap by 1/2 as points and by 2/3 as pixels.
    assert mmcv_ops.nms(boxes, scores, 0.6, offset=0)[1].tolist() == [0, 1, 2]
    assert mmcv_ops.nms(boxes, scores, 0.6, offset=1)[1].tolist() == [0, 2]


@pytest.mark.parametrize(('width', 'threshold'), [(2, 1 / 3), (4, 3 / 5), (6, 5 / 7)])
def test_nms_keeps_an_overlap_of_exactly_the_threshold(width, threshold):
    boxes = torch.tensor([[0.0, 0, width, 2], [1, 0, width + 1, 2]])
    assert overlap(*boxes.tolist()) == pytest.approx(threshold)
    _, kept = mmcv_ops.nms(boxes, torch.tensor([0.9, 0.8]), threshold)
    assert kept.tolist() == [0, 1]


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_nms_dtypes(dtype):
    boxes, scores = (tensor.to(dtype) for tensor in random_boxes(7))
    dets, kept = mmcv_ops.nms(boxes, scores, 0.4)
    assert dets.dtype == dtype
    assert kept.tolist() == loop_nms(boxes, scores, 0.4)


def test_nms_filters_and_limits():
    boxes, scores = random_boxes(60)
    _, kept = mmcv_ops.nms(boxes, scores, 0.5, score_threshold=0.4, max_num=5)
    candidates = (scores > 0.4).nonzero()[:, 0]
    expected = loop_nms(boxes[candidates], scores[candidates], 0.5)
    assert kept.tolist() == candidates[expected][:5].tolist()


def test_nms_takes_numpy():
    boxes, scores = random_boxes(7)
    dets, kept = mmcv_ops.nms(boxes.numpy(), scores.numpy(), 0.5)
    assert isinstance(dets, np.ndarray)
    assert kept.tolist() == loop_nms(boxes, scores, 0.5)


@pytest.mark.parametrize('split_thr', [10000, 1], ids=['together', 'class-by-class'])
@pytest.mark.parametrize('class_agnostic', [False, True], ids=['by-class', 'agnostic'])
def test_batched_nms(split_thr, class_agnostic):
    boxes, scores = random_boxes(60)
    classes = torch.arange(60) % (1 if class_agnostic else 4)
    config = {'type': 'nms', 'iou_threshold': 0.4, 'split_thr': split_thr}
    dets, kept = mmcv_ops.batched_nms(boxes, scores, classes, config, class_agnostic)
    expected = []
    for label in classes.unique():
        rows = (classes == label).nonzero()[:, 0]
        expected += rows[loop_nms(boxes[rows], scores[rows], 0.4)].tolist()
    expected.sort(key=lambda i: -scores[i])
    assert kept.tolist() == expected
    torch.testing.assert_close(dets, torch.cat([boxes, scores[:, None]], 1)[kept])


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


def test_soft_nms_leaves_its_arguments_alone():
    boxes, scores = random_boxes(7)
    copies = boxes.clone(), scores.clone()
    mmcv_ops.soft_nms(boxes, scores)
    assert torch.equal(boxes, copies[0]) and torch.equal(scores, copies[1])


def test_soft_nms_on_boxes_without_area():
    """mmcv's example: equal scores, and boxes whose overlap is 0 / 0."""
    boxes = torch.tensor([[4.0, 3, 5, 3], [4, 3, 5, 4], *[[3.0, 1, 3, 1]] * 4])
    scores = torch.tensor([0.9, 0.9, 0.5, 0.5, 0.4, 0.0])
    dets, kept = mmcv_ops.soft_nms(boxes, scores, 0.6, sigma=0.5)
    assert kept.tolist() == [0, 1, 2, 3, 4]
    torch.testing.assert_close(dets[:, 4], scores[:5])


@pytest.mark.parametrize('number', SIZES.values(), ids=SIZES)
@pytest.mark.parametrize('as_array', [False, True], ids=['tensor', 'numpy'])
def test_nms_match(number, as_array):
    boxes, scores = random_boxes(number)
    dets = torch.cat([boxes, scores[:, None]], 1)
    groups = mmcv_ops.nms_match(dets.numpy() if as_array else dets, 0.4)
    remaining = scores.argsort(descending=True).tolist()
    expected = []
    while remaining:
        best = boxes[remaining[0]].tolist()
        joins = [i for i in remaining if overlap(best, boxes[i].tolist()) >= 0.4]
        expected.append(joins)
        remaining = [i for i in remaining if i not in joins]
    assert [group.tolist() for group in groups] == expected


def test_nms_match_joins_at_exactly_the_threshold():
    dets = torch.tensor([[0.0, 0, 2, 2, 0.9], [1, 0, 3, 2, 0.8], [9, 9, 10, 10, 0.7]])
    groups = mmcv_ops.nms_match(dets, float(torch.tensor(2 / 6)))
    assert [group.tolist() for group in groups] == [[0, 1], [2]]
