"""Hulls, boxes and distances of point sets, with the arguments of mmcv's operators.

A point set has nine points (x1, y1, ..., x9, y9), and a polygon has four corners.
Points lie along the first dimension of tensors here. The arithmetic is float64.
"""

import math

import torch

from .deform import widen
from .polygons import area, cross, intersection_with_quadrilaterals

SETS_AT_ONCE = 2**12
"""Pairs per step, so that temporary tensors stay in the cache."""


def _columns(points):
    """Return x and y of point sets of shape (N, 2 * P), each of shape (P, N)."""
    return points.double().T.unflatten(0, (-1, 2)).unbind(1)


def _hull(x, y):
    """Return the corners of convex hulls as two tensors of the points' shape (P, N).

    Gift wrapping starts at the lowest point. Each step looks for the point that has all
    others on its left. Hulls with fewer than P corners repeat their first.
    """
    with torch.no_grad():
        lowest = y == y.amin(0)
        start = torch.where(lowest, x, math.inf).argmin(0, keepdim=True)
        corners, is_closed = [start], torch.zeros_like(start, dtype=torch.bool)
        start_x, start_y = x.gather(0, start), y.gather(0, start)
        for _ in range(len(x) - 1):
            at_x, at_y = x.gather(0, corners[-1]), y.gather(0, corners[-1])
            to_x, to_y = x - at_x, y - at_y
            best = torch.zeros_like(start)
            best_x, best_y = to_x[:1], to_y[:1]
            for k in range(1, len(x)):
                turn = cross((best_x, best_y), (to_x[k : k + 1], to_y[k : k + 1]))
                length = to_x[k].square() + to_y[k].square()
                is_longer = length > best_x.square() + best_y.square()
                takes = (turn < 0) | ((turn == 0) & is_longer)
                best = torch.where(takes, k, best)
                best_x = torch.where(takes, to_x[k], best_x)
                best_y = torch.where(takes, to_y[k], best_y)
            # Another point in the place of the first closes the hull, too.
            is_closed |= (x.gather(0, best) == start_x) & (y.gather(0, best) == start_y)
            corners.append(torch.where(is_closed, start, best))
        corners = torch.cat(corners)
    return x.gather(0, corners), y.gather(0, corners)


def min_area_polygons(pointsets, polygons):
    """Write the smallest rotated rectangle around each point set into `polygons`.

    A side of it lies on an edge of the hull.

    Args:
        pointsets: shape (N, 18).
        polygons: shape (N, 8), written.
    """
    x, y = _columns(pointsets)
    hull_x, hull_y = _hull(x, y)
    edge_x, edge_y = hull_x.roll(-1, 0) - hull_x, hull_y.roll(-1, 0) - hull_y
    angle = torch.atan2(edge_y, edge_x).remainder(math.pi / 2)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    sides = [cos * x + sin * y, cos * y - sin * x]  # (edges, points, N) each
    low, high = (
        [reduce(side, 1) for side in sides] for reduce in (torch.amin, torch.amax)
    )
    size = (high[0] - low[0]) * (high[1] - low[1])
    best = size.argmin(0, keepdim=True)
    cos, sin, (x1, y1), (x2, y2) = (
        cos[:, 0].gather(0, best),
        sin[:, 0].gather(0, best),
        [edge.gather(0, best) for edge in low],
        [edge.gather(0, best) for edge in high],
    )
    corners = ((x2, y1), (x1, y1), (x1, y2), (x2, y2))
    turned = [(cos * x - sin * y, sin * x + cos * y) for x, y in corners]
    polygons.copy_(torch.cat([value for corner in turned for value in corner]).T)


def convex_iou(pointsets, polygons, ious):
    """Write the overlaps of the hulls of point sets and polygons into `ious`.

    Args:
        pointsets: shape (N, 18).
        polygons: shape (K, 8).
        ious: shape (N, K), written.
    """
    corners = [column[:, None] for column in _columns(polygons)]  # (4, 1, K)
    whole = area(*corners)
    rows = max(SETS_AT_ONCE // max(len(polygons), 1), 1)
    for points, written in zip(pointsets.split(rows), ious.split(rows), strict=True):
        hull = [column[..., None] for column in _hull(*_columns(points))]
        inside = intersection_with_quadrilaterals(*hull, *corners)
        written.copy_(inside / (area(*hull) + whole - inside))


def convex_giou(pointsets, polygons, output):
    """Write the generalized overlaps of pairs, after their gradients, into `output`.

    Args:
        pointsets: shape (N, 18).
        polygons: shape (N, 8).
        output: shape (N, 19), written: the gradient of the point set, and the overlap.
    """
    with torch.enable_grad():
        points = pointsets.detach().double().requires_grad_()
        hull, corners = _hull(*_columns(points)), _columns(polygons)
        inside = intersection_with_quadrilaterals(*hull, *corners)
        union = area(*hull) + area(*corners) - inside
        around = [torch.cat(pair) for pair in zip(hull, corners, strict=True)]
        whole = area(*_hull(*around))
        giou = inside / union - (whole - union) / whole
        (gradient,) = torch.autograd.grad(giou.sum(), points)
    output.copy_(torch.cat([gradient, giou.detach()[:, None]], 1))


def chamfer_distance_forward(xyz1, xyz2, dist1, dist2, idx1, idx2):
    """Write the squared distance of each point to the nearest of the other set.

    Args:
        xyz1: shape (B, N, 2).
        xyz2: shape (B, M, 2).
        dist1, dist2: shapes (B, N) and (B, M), written.
        idx1, idx2: index of the nearest point, shaped as the distances, written.
    """
    first, second = widen(xyz1)[:, :, None], widen(xyz2)[:, None]
    distances = (first - second).square().sum(3)
    for axis, distance, index in ((2, dist1, idx1), (1, dist2, idx2)):
        least, nearest = distances.min(axis)
        distance.copy_(least)
        index.copy_(nearest)


def chamfer_distance_backward(
    xyz1, xyz2, idx1, idx2, grad_dist1, grad_dist2, grad_xyz1, grad_xyz2
):
    """Write the gradients of both sets of points; see `chamfer_distance_forward`."""
    sets = widen(xyz1), widen(xyz2)
    gradients = [torch.zeros_like(points) for points in sets]
    for own, index, grad in ((0, idx1, grad_dist1), (1, idx2, grad_dist2)):
        nearest = index.long()[..., None].expand(-1, -1, 2)
        difference = sets[own] - sets[1 - own].gather(1, nearest)
        slope = 2 * widen(grad)[..., None] * difference
        gradients[own] += slope
        gradients[1 - own].scatter_add_(1, nearest, -slope)
    grad_xyz1.copy_(gradients[0])
    grad_xyz2.copy_(gradients[1])
