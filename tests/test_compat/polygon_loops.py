"""Areas and intersections of polygons, corner by corner."""


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
