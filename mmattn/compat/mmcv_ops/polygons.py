"""Areas of intersections of polygons, without a search for their vertices.

The intersection of a polygon and the region 0 <= y <= f(x) is measured by vertical
slices. The signed sum over the polygon's edges of the integral of clamp(y, 0, f(x))
along x is its area. With linear f, both y and y - f(x) are linear along an edge, and so
the integrals have a closed form. It has no cases for parallel or coinciding edges, and
it is continuous, so rounding cannot change it much.

Polygons are lists of vertices along the first dimension. Their other dimensions
broadcast.
"""

import torch


def _mean_of_positive_part(start, end):
    """Return the mean of max(v, 0) over values v from `start` to `end`."""
    positive = start.clamp(min=0) + end.clamp(min=0)
    total = start.abs() + end.abs()
    share = positive / total.clamp(min=torch.finfo(total.dtype).tiny)
    return positive * share / 2


def signed_area_under(x, y, width, height, slope):
    """Return the signed area of polygons where 0 <= x <= width and y is under a line.

    Args:
        x, y: vertices, shape (V, ...).
        width: the region's last x.
        height: the line at x = 0; y is between 0 and the line.
        slope: how much the line falls from 0 to `width` per unit of x; it does not
            become negative.

    Returns:
        the area, positive for a polygon whose vertices turn from y to x.
    """
    next_x, next_y = x.roll(-1, 0), y.roll(-1, 0)
    ends_x, ends_y = [], []
    step = next_x - x
    step = torch.where(step == 0, 1, step)
    for end in (x, next_x):
        end = end.clamp(min=0).minimum(width)
        share = ((end - x) / step).clamp(0, 1)
        ends_x.append(end)
        ends_y.append(y + share * (next_y - y))
    above = [y - (height - slope * x) for x, y in zip(ends_x, ends_y, strict=True)]
    mean = _mean_of_positive_part(*ends_y) - _mean_of_positive_part(*above)
    return ((ends_x[1] - ends_x[0]) * mean).sum(0)


def cross(a, b):
    """Return the z of the cross product of vectors (x, y), each a pair of tensors."""
    return a[0] * b[1] - a[1] * b[0]


def area(x, y):
    """Return the area of polygons without self-intersections."""
    x, y = x - x[:1], y - y[:1]
    return cross((x, y), (x.roll(-1, 0), y.roll(-1, 0))).sum(0).abs() / 2


def intersection_with_rectangles(x, y, width, height):
    """Return the area of polygons inside rectangles from (0, 0) to (width, height)."""
    return signed_area_under(x, y, width, height, 0).abs()


def intersection_with_quadrilaterals(x, y, corners_x, corners_y):
    """Return the area of polygons inside quadrilaterals, two triangles each.

    An affine map takes each triangle to (0, 0), (1, 0), (0, 1).
    """
    total = 0
    moved = x - corners_x[0], y - corners_y[0]
    for i in (1, 2):
        first, second = (
            (corners_x[j] - corners_x[0], corners_y[j] - corners_y[0])
            for j in (i, i + 1)
        )
        twice = cross(first, second)
        scale = torch.where(twice == 0, 1, twice)
        u, v = cross(moved, second) / scale, cross(first, moved) / scale
        one = torch.ones((), dtype=x.dtype, device=x.device)
        total = total + twice.abs() * signed_area_under(u, v, one, 1, 1)
    return total.abs()
