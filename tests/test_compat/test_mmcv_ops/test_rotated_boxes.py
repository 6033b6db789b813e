"""Rotated boxes and quadrilaterals through mmcv's functions, against clipping."""

import math

import pytest
import torch
from polygon_loops import clip, polygon_area, side

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

SIZES = {'no-box': 0, 'one-box': 1, 'few': 7, 'many': 40}


def random_boxes(number, seed=0):
    """Rotated boxes that overlap a lot, with scores all different."""
    generator = torch.Generator().manual_seed(seed)
    boxes = torch.rand(number, 5, generator=generator, dtype=torch.float64)
    boxes = boxes * torch.tensor([10.0, 10, 9, 6, 7]) + torch.tensor([0.0, 0, 1, 1, -3])
    scores = torch.randperm(number, generator=generator).double() / (number + 1)
    return boxes, scores


def corners_of(box):
    """Return the corners of a box, turned from x to y as the angle grows."""
    x, y, w, h, a = box
    return [
        (
            x + i * w / 2 * math.cos(a) - j * h / 2 * math.sin(a),
            y + i * w / 2 * math.sin(a) + j * h / 2 * math.cos(a),
        )
        for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]


def overlap(first, second, mode='iou'):
    inside = polygon_area(clip(second, first))
    areas = polygon_area(first), polygon_area(second)
    return inside / (areas[0] if mode == 'iof' else sum(areas) - inside)


def table(first, second, mode):
    rows = [[overlap(a, b, mode) for b in second] for a in first]
    return torch.tensor(rows, dtype=torch.float64).view(len(first), len(second))


def quadrilaterals(boxes, seed):
    """Return convex quadrilaterals, in either order of their corners."""
    generator = torch.Generator().manual_seed(seed)
    quads = torch.tensor([corners_of(box) for box in boxes.tolist()])
    quads = quads.double().view(-1, 4, 2)
    quads = quads + torch.rand(quads.shape, generator=generator) * 0.3
    quads[::2] = quads[::2].flip(1)
    return quads.flatten(1)


def as_corners(quads):
    return [list(map(tuple, quad)) for quad in quads.view(-1, 4, 2).tolist()]


@pytest.mark.parametrize('clockwise', [True, False])
@pytest.mark.parametrize('mode', ['iou', 'iof'])
@pytest.mark.parametrize(('N', 'M'), [(20, 30), (1, 3), (0, 4), (4, 0)], ids=str)
def test_box_iou_rotated(N, M, mode, clockwise):
    first, second = random_boxes(N)[0], random_boxes(M, seed=1)[0]
    turn = torch.tensor([1.0, 1, 1, 1, 1 if clockwise else -1])
    corners = [
        [corners_of(b) for b in (boxes * turn).tolist()] for boxes in (first, second)
    ]
    expected = table(*corners, mode)
    overlaps = mmcv_ops.box_iou_rotated(first, second, mode, clockwise=clockwise)
    torch.testing.assert_close(overlaps, expected)
    number = min(N, M)
    pairs = first[:number], second[:number]
    overlaps = mmcv_ops.box_iou_rotated(*pairs, mode, aligned=True, clockwise=clockwise)
    torch.testing.assert_close(overlaps, expected.diag())


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_box_iou_rotated_of_coinciding_edges(dtype):
    """Boxes that share edges, where rounding decides on which side a corner is."""
    generator = torch.Generator().manual_seed(0)
    boxes = torch.rand(200, 5, generator=generator, dtype=dtype) * 50 + 1
    turned = boxes[:, [0, 1, 3, 2, 4]] + torch.tensor([0, 0, 0, 0, math.pi / 2])
    halves = boxes * torch.tensor([1, 1, 0.5, 1, 1])
    expected = {'same': (boxes, 1.0), 'turned': (turned, 1.0), 'half': (halves, 0.5)}
    for name, (others, iou) in expected.items():
        overlaps = mmcv_ops.box_iou_rotated(boxes, others.to(dtype), aligned=True)
        assert (overlaps - iou).abs().max() < 1e-4, name


def test_boxes_without_area_overlap_nothing():
    box = torch.tensor([[5.0, 5, 4, 4, 0]])
    others = torch.tensor([[5.0, 5, 0, 4, 0], [5, 5, 0, 0, 0], [5, 5, 4, 4, 1]])
    assert (mmcv_ops.box_iou_rotated(others, box) > 0).tolist() == [[0], [0], [1]]
    assert mmcv_ops.box_iou_rotated(others, box, 'iof').isfinite().all()
    quads = torch.tensor([[1.0, 1, 1, 1, 1, 1, 1, 1], [0, 0, 2, 2, 4, 4, 2, 2]])
    assert not mmcv_ops.box_iou_quadri(quads, quads).any()


@pytest.mark.parametrize('mode', ['iou', 'iof'])
@pytest.mark.parametrize(('N', 'M'), [(20, 30), (1, 3), (0, 4), (4, 0)], ids=str)
def test_box_iou_quadri(N, M, mode):
    first = quadrilaterals(random_boxes(N)[0], 2)
    second = quadrilaterals(random_boxes(M, seed=1)[0], 3)
    expected = table(as_corners(first), as_corners(second), mode)
    torch.testing.assert_close(mmcv_ops.box_iou_quadri(first, second, mode), expected)
    number = min(N, M)
    overlaps = mmcv_ops.box_iou_quadri(first[:number], second[:number], mode, True)
    torch.testing.assert_close(overlaps, expected.diag())


def test_quadrilateral_with_a_notch():
    dart = torch.tensor([[0.0, 0, 2, 1, 4, 0, 2, 4]])
    square = torch.tensor([[0.0, 0, 4, 0, 4, 4, 0, 4]])
    assert mmcv_ops.box_iou_quadri(dart, square).item() == pytest.approx(6 / 16)


def loop_nms(corners, scores, threshold, labels):
    kept = []
    for i in sorted(range(len(corners)), key=lambda i: -scores[i]):
        rivals = [j for j in kept if labels[i] == labels[j]]
        if all(overlap(corners[j], corners[i]) <= threshold for j in rivals):
            kept.append(i)
    return kept


@pytest.mark.parametrize('number', list(SIZES.values())[1:], ids=list(SIZES)[1:])
@pytest.mark.parametrize('labeled', [False, True], ids=['one-class', 'labels'])
@pytest.mark.parametrize('at_once', [128, 3], ids=['one-step', 'steps'])
def test_nms(served_ops, monkeypatch, number, labeled, at_once):
    from mmattn.compat.mmcv_ops import rotated_boxes

    monkeypatch.setattr(rotated_boxes, 'BOXES_AT_ONCE', at_once)
    boxes, scores = random_boxes(number)
    labels = torch.arange(number) % 3 if labeled else torch.zeros(number)
    given = labels if labeled else None
    corners = [corners_of(box) for box in boxes.tolist()]
    expected = loop_nms(corners, scores, 0.2, labels)
    dets, kept = mmcv_ops.nms_rotated(boxes, scores, 0.2, given)
    assert kept.tolist() == expected
    torch.testing.assert_close(dets, torch.cat([boxes, scores[:, None]], 1)[kept])
    quads = quadrilaterals(boxes, 2)
    expected = loop_nms(as_corners(quads), scores, 0.2, labels)
    dets, kept = mmcv_ops.nms_quadri(quads, scores, 0.2, given)
    assert kept.tolist() == expected


def test_nms_keeps_an_overlap_of_exactly_the_threshold():
    boxes = torch.tensor([[2.0, 1, 4, 2, 0], [3, 1, 4, 2, 0]])
    _, kept = mmcv_ops.nms_rotated(boxes, torch.tensor([0.9, 0.8]), 3 / 5)
    assert kept.tolist() == [0, 1]


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
def test_points_in_polygons(dtype):
    quads = quadrilaterals(random_boxes(9)[0], 2).to(dtype)
    generator = torch.Generator().manual_seed(5)
    points = (torch.rand(40, 2, generator=generator) * 12).to(dtype)
    inside = mmcv_ops.points_in_polygons(points, quads)
    expected = [
        [
            all(
                side(q[i - 1], q[i], p) * side(q[i - 1], q[i], q[i - 2]) > 0
                for i in range(4)
            )
            for q in as_corners(quads)
        ]
        for p in points.tolist()
    ]
    assert 0 < inside.sum() < inside.numel()
    assert inside.tolist() == torch.tensor(expected).float().tolist()


def test_diff_iou_rotated(served_ops):
    first, second = random_boxes(30)[0], random_boxes(30, seed=1)[0]
    second[:4] = first[:4]
    second[4:8] = first[4:8] * torch.tensor([1, 1, 0.5, 0.5, 1])
    second[8, :2] += 50
    second[9] = first[9] + torch.tensor([0, 0, 0, 0, math.pi / 4])
    second[10:12] = first[10:12] + torch.tensor(
        [[0, 0, 0, 0, 1e-6], [0, 0, 0, 0, 1e-7]]
    )
    first, second = first[None].requires_grad_(), second[None].requires_grad_()
    ious = mmcv_ops.diff_iou_rotated_2d(first, second)
    corners = [[corners_of(b) for b in boxes[0].tolist()] for boxes in (first, second)]
    expected = [overlap(a, b) for a, b in zip(*corners, strict=True)]
    torch.testing.assert_close(ious[0].tolist(), expected, rtol=1e-5, atol=1e-5)
    inputs = first[:, 20:23].detach(), second[:, 20:23].detach()
    inputs = [boxes.clone().requires_grad_() for boxes in inputs]
    assert torch.autograd.gradcheck(
        mmcv_ops.diff_iou_rotated_2d, inputs, eps=1e-5, atol=1e-3
    )
