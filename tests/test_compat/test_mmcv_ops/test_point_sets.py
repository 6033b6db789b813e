"""Point sets through mmcv's own functions, against independent formulations."""

import math

import pytest
import torch
from polygon_loops import clip, polygon_area, side

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')


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


def polygons(number, seed=1):
    generator = torch.Generator().manual_seed(seed)
    box = torch.tensor([[0.0, 0], [6, 0], [6, 4], [0, 4]], dtype=torch.float64)
    noise = torch.rand(number, 4, 2, generator=generator, dtype=torch.float64)
    place = torch.rand(number, 1, 2, generator=generator, dtype=torch.float64)
    return (box + noise + 5 * place).flatten(1)


def corners_of(row):
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


@pytest.mark.parametrize(('N', 'K'), [(12, 5), (1, 1), (0, 3), (3, 0)], ids=str)
def test_convex_iou(N, K):
    points, others = point_sets(N), polygons(K)
    overlaps = mmcv_ops.convex_iou(points, others)
    assert overlaps.shape == (N, K)
    for n, row in enumerate(points):
        own = hull(corners_of(row))
        for k, other in enumerate(map(corners_of, others)):
            inside = polygon_area(clip(own, other))
            union = polygon_area(own) + polygon_area(other) - inside
            assert overlaps[n, k].item() == pytest.approx(inside / union)


def test_convex_giou():
    points, others = point_sets(12), polygons(12)
    points[:3] += 40  # apart from their polygons
    overlaps, gradient = mmcv_ops.convex_giou(points, others)

    def loop(row, other):
        own = hull(corners_of(row))
        inside = polygon_area(clip(own, other))
        union = polygon_area(own) + polygon_area(other) - inside
        whole = polygon_area(hull(own + other))
        return inside / union - (whole - union) / whole

    for n in range(12):
        other = corners_of(others[n])
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
        own, corners = hull(corners_of(row)), corners_of(box)
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


def test_min_area_polygon_of_one_point():
    box = mmcv_ops.min_area_polygons(torch.tensor([[3.0, 5.0] * 9]))
    torch.testing.assert_close(box, torch.tensor([[3.0, 5.0] * 4]))


@pytest.mark.parametrize(('N', 'M'), [(4, 6), (1, 1)], ids=str)
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
