"""Polygons through mmcv's functions, against clipping."""

import math

import pytest
import torch
from mmcv import ops as mmcv_ops

pytestmark = pytest.mark.usefixtures('our_ops')


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
@pytest.mark.parametrize(('N', 'M'), [(20, 30), (0, 4)], ids=str)
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
@pytest.mark.parametrize(('N', 'M'), [(20, 30), (4, 0)], ids=str)
def test_box_iou_quadri(N, M, mode):
    first = quadrilaterals(random_boxes(N)[0], 2)
    second = quadrilaterals(random_boxes(M, seed=1)[0], 3)
    expected = table(as_corners(first), as_corners(second), mode)
    torch.testing.assert_close(mmcv_ops.box_iou_quadri(first, second, mode), expected)
    number = min(N, M)
    overlaps = mmcv_ops.box_iou_quadri(first[:number], second[:number], mode, True)
    torch.testing.assert_close(overlaps, expected.diag())


def loop_nms(corners, scores, threshold, labels):
    kept = []
    for i in sorted(range(len(corners)), key=lambda i: -scores[i]):
        rivals = [j for j in kept if labels[i] == labels[j]]
        if all(overlap(corners[j], corners[i]) <= threshold for j in rivals):
            kept.append(i)
    return kept


@pytest.mark.parametrize('labeled', [False, True], ids=['one-class', 'labels'])
@pytest.mark.parametrize('at_once', [128, 3], ids=['one-step', 'steps'])
def test_nms(our_ops, monkeypatch, labeled, at_once):
    from mmattn.compat.mmcv_ops import rotated_boxes

    monkeypatch.setattr(rotated_boxes, 'BOXES_AT_ONCE', at_once)
    number = 40
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


def test_points_in_polygons():
    quads = quadrilaterals(random_boxes(9)[0], 2).half()
    generator = torch.Generator().manual_seed(5)
    points = (torch.rand(40, 2, generator=generator) * 12).half()
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


def test_diff_iou_rotated(our_ops):
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


def side(a, b, p):
    return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])


def polygon_area(corners):
    origin = (0, 0)
    pairs = zip(corners, corners[1:] + corners[:1], strict=True)
    return abs(sum(side(origin, a, b) for a, b in pairs)) / 2 if corners else 0


def clip(polygon, window):
    """Cut a polygon by one edge of a convex window after the other."""
    for i in range(4):
        a, b = window[i - 1], window[i]
        inside = side(a, b, window[i - 2])  # the sign of the window's own side
        cut = []
        for p, q in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            dp, dq = (side(a, b, point) * inside for point in (p, q))
            if dp >= 0:
                cut.append(p)
            if (dp > 0) != (dq > 0) and dp != dq:
                t = dp / (dp - dq)
                cut.append(tuple(u + t * (v - u) for u, v in zip(p, q, strict=True)))
        polygon = cut
    return polygon


def point_sets(number, seed=0):
    """Random points; the last two sets have equal points, and points on a line."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(number, 9, 2, generator=generator, dtype=torch.float64) * 10
    corners = torch.tensor([[1.0, 1], [5, 1], [5, 4], [1, 4]], dtype=torch.float64)
    if number > 1:
        points[-1] = corners[[0, 1, 1, 0, 2, 3, 3, 2, 0]]
        middles = (corners + corners.roll(1, 0)) / 2
        points[-2] = torch.cat([middles, corners, corners.mean(0, keepdim=True)])
    return points.flatten(1)


def quads_near(number, seed=1):
    generator = torch.Generator().manual_seed(seed)
    box = torch.tensor([[0.0, 0], [6, 0], [6, 4], [0, 4]], dtype=torch.float64)
    noise = torch.rand(number, 4, 2, generator=generator, dtype=torch.float64)
    place = torch.rand(number, 1, 2, generator=generator, dtype=torch.float64)
    return (box + noise + 5 * place).flatten(1)


def corners_in(row):
    return list(map(tuple, row.view(-1, 2).tolist()))


def hull(points):
    """Monotone chains: the lower hull from left to right, and the upper one back."""
    points = sorted(set(points))
    chains = []
    for ordered in (points, points[::-1]):
        chain = []
        for p in ordered:
            while len(chain) > 1 and side(chain[-2], chain[-1], p) <= 0:
                chain.pop()
            chain.append(p)
        chains.append(chain[:-1])
    return chains[0] + chains[1]


@pytest.mark.parametrize(('N', 'K'), [(12, 5), (0, 3)], ids=str)
def test_convex_iou(N, K):
    points, others = point_sets(N), quads_near(K)
    overlaps = mmcv_ops.convex_iou(points, others)
    assert overlaps.shape == (N, K)
    for n, row in enumerate(points):
        own = hull(corners_in(row))
        for k, other in enumerate(map(corners_in, others)):
            inside = polygon_area(clip(own, other))
            union = polygon_area(own) + polygon_area(other) - inside
            assert overlaps[n, k].item() == pytest.approx(inside / union)


def test_convex_giou():
    points, others = point_sets(12), quads_near(12)
    points[:3] += 40  # apart from their polygons
    overlaps, gradient = mmcv_ops.convex_giou(points, others)

    def loop(row, other):
        own = hull(corners_in(row))
        inside = polygon_area(clip(own, other))
        union = polygon_area(own) + polygon_area(other) - inside
        whole = polygon_area(hull(own + other))
        return inside / union - (whole - union) / whole

    for n in range(12):
        other = corners_in(others[n])
        assert overlaps[n].item() == pytest.approx(loop(points[n], other))
        if n >= 10:
            continue  # equal points: the derivative depends on the side
        for i in range(18):
            step = torch.zeros(18, dtype=torch.float64)
            step[i] = 1e-6
            slope = loop(points[n] + step, other) - loop(points[n] - step, other)
            assert gradient[n, i].item() == pytest.approx(slope / 2e-6, abs=1e-7)


def test_min_area_polygons():
    points = point_sets(12)
    boxes = mmcv_ops.min_area_polygons(points)
    for row, box in zip(points, boxes, strict=True):
        own, corners = hull(corners_in(row)), corners_in(box)
        sizes = []
        for a, b in zip(own, own[1:] + own[:1], strict=True):
            length = math.dist(a, b)
            along = [((b[0] - a[0]) * x + (b[1] - a[1]) * y) / length for x, y in own]
            across = [side(a, b, p) / length for p in own]
            sizes.append((max(along) - min(along)) * (max(across) - min(across)))
        assert polygon_area(corners) == pytest.approx(min(sizes))
        # A rectangle that holds all the points.
        edges = [
            (q[0] - p[0], q[1] - p[1])
            for p, q in zip(corners, corners[1:] + corners[:1], strict=True)
        ]
        assert edges[0][0] * edges[1][0] + edges[0][1] * edges[1][1] == pytest.approx(
            0, abs=1e-9
        )
        turn = math.copysign(1, side(*corners[:3]))
        assert all(
            turn * side(p, q, point) >= -1e-9
            for p, q in zip(corners, corners[1:] + corners[:1], strict=True)
            for point in own
        )


@pytest.mark.parametrize(('N', 'M'), [(4, 6)], ids=str)
def test_chamfer_distance(N, M):
    generator = torch.Generator().manual_seed(0)
    first, second = (
        torch.rand(3, n, 2, generator=generator, dtype=torch.float64).requires_grad_()
        for n in (N, M)
    )
    *distances, near_second, near_first = mmcv_ops.chamfer_distance(first, second)
    table = torch.cdist(first, second).square()
    expected = table.amin(2), table.amin(1)
    torch.testing.assert_close(distances, list(expected))
    assert torch.equal(near_second, table.argmin(2).int())
    assert torch.equal(near_first, table.argmin(1).int())
    directions = [torch.randn_like(d) for d in expected]
    torch.testing.assert_close(
        torch.autograd.grad(distances, (first, second), directions),
        torch.autograd.grad(expected, (first, second), directions),
    )
