"""Pooling in boxes through mmcv's functions, against loops over bins and samples."""

import math
from itertools import product

import pytest
import torch
from mmcv import ops as mmcv_ops

pytestmark = pytest.mark.usefixtures('our_ops')

SHAPE = 2, 8, 5, 7
BINS = 2, 3
SCALE = 0.5
# Inside, reaching past two borders, thinner than a pixel, far outside, without area.
ROIS = [
    [0, 1.2, 0.7, 9.1, 8.3],
    [1, -3.0, -2.0, 16.5, 12.0],
    [1, 4.0, 3.0, 4.6, 9.0],
    [0, 60.0, 60.0, 70.0, 64.0],
    [0, 2, 2, 2, 6],
]
# Inside, turned past a border, thinner than a pixel, far outside.
TURNED = [
    [0, 6.2, 4.7, 6.1, 5.3, 0.4],
    [1, 9.0, 3.0, 12.5, 8.0, -2.1],
    [1, 5.0, 6.0, 1.2, 7.0, 5.5],
    [0, 60.0, 60.0, 7.0, 4.0, 0.9],
]
by_ratio = pytest.mark.parametrize('ratio', [0, 2], ids=['dense', 'ratio-2'])
by_aligned = pytest.mark.parametrize(
    'aligned', [True, False], ids=['aligned', 'legacy']
)
by_clockwise = pytest.mark.parametrize('clockwise', [True, False])


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def features():
    return random(*SHAPE).requires_grad_()


def boxes(rois=ROIS):
    return torch.tensor(rois, dtype=torch.float64)


def assert_same(output, expected, tensors, **tolerances):
    torch.testing.assert_close(output, expected, **tolerances)
    direction = random(*output.shape, seed=1)
    torch.testing.assert_close(
        *(torch.autograd.grad(o, tensors, direction) for o in (output, expected)),
        **tolerances,
    )


def bilinear(image, y, x):
    """Value of `image` (C, H, W) at a point, by the border's pixels just outside it."""
    H, W = image.shape[1:]
    if y < -1 or y > H or x < -1 or x > W:
        return image.new_zeros(image.size(0))
    y, x = min(max(y, 0), H - 1), min(max(x, 0), W - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, H - 1), min(left + 1, W - 1)
    dy, dx = y - top, x - left
    upper = (1 - dx) * image[:, top, left] + dx * image[:, top, right]
    lower = (1 - dx) * image[:, bottom, left] + dx * image[:, bottom, right]
    return (1 - dy) * upper + dy * lower


def grid(start_y, start_x, height, width, ratio):
    """Return the middles of the parts of a bin, `ratio` by `ratio` or a pixel each."""
    rows, columns = ratio or math.ceil(height), ratio or math.ceil(width)
    return [
        (start_y + (i + 0.5) * height / rows, start_x + (j + 0.5) * width / columns)
        for i, j in product(range(rows), range(columns))
    ]


def loop(features, rois, samples, reduce=lambda values: values.mean(0)):
    """Reduce the values at the points `samples(n, box, bin_y, bin_x)` of each bin."""
    bins = []
    for n, (image, *box) in enumerate(rois.tolist()):
        for place in product(range(BINS[0]), range(BINS[1])):
            points = samples(n, box, *place)
            values = [bilinear(features[int(image)], y, x) for y, x in points]
            bins.append(reduce(torch.stack(values)))
    return torch.stack(bins).view(len(rois), *BINS, -1).permute(0, 3, 1, 2)


@pytest.mark.parametrize('mode', ['avg', 'max'])
@by_ratio
@by_aligned
def test_roi_align(aligned, ratio, mode):
    def samples(n, box, bin_y, bin_x):
        x1, y1, x2, y2 = (SCALE * value - 0.5 * aligned for value in box)
        height, width = y2 - y1, x2 - x1
        if not aligned:
            height, width = max(height, 1), max(width, 1)
        height, width = height / BINS[0], width / BINS[1]
        return grid(y1 + bin_y * height, x1 + bin_x * width, height, width, ratio)

    x, rois = features(), boxes()
    if aligned and not ratio:  # a box without area has no sample, and is 0
        last = mmcv_ops.roi_align(x, rois[-1:], BINS, SCALE, ratio, mode, aligned)
        assert not last.any() and not torch.autograd.grad(last.sum(), x)[0].any()
        rois = rois[:-1]
    output = mmcv_ops.roi_align(x, rois, BINS, SCALE, ratio, mode, aligned)
    reduce = dict(avg=lambda v: v.mean(0), max=lambda v: v.amax(0))[mode]
    assert_same(output, loop(x, rois, samples, reduce), x)


def test_roi_pool():
    def samples(n, box, bin_y, bin_x):
        x1, y1 = (SCALE * value for value in box[:2])
        x2, y2 = (SCALE * (value + 1) for value in box[2:])
        height, width = (y2 - y1) / BINS[0], (x2 - x1) / BINS[1]
        rows = range(
            max(math.floor(y1 + bin_y * height), 0),
            min(math.ceil(y1 + (bin_y + 1) * height), SHAPE[2]),
        )
        columns = range(
            max(math.floor(x1 + bin_x * width), 0),
            min(math.ceil(x1 + (bin_x + 1) * width), SHAPE[3]),
        )
        inside = [*product(rows, columns)] if min(height, width) > 0 else []
        return inside or [(-9, -9)]  # which is 0

    x, rois = features(), boxes([*ROIS, [1, 4.6, 4, 3.2, 9]])
    output = mmcv_ops.RoIPool(BINS, SCALE)(x, rois)
    assert_same(output, loop(x, rois, samples, lambda values: values.amax(0)), x)


@by_ratio
@pytest.mark.parametrize('with_offset', [False, True], ids=['fixed', 'offset'])
def test_deform_roi_pool(with_offset, ratio):
    x, rois, gamma = features(), boxes(ROIS[:-1]), 0.3
    offset = random(len(rois), 2, *BINS, seed=2).requires_grad_()

    def samples(n, box, bin_y, bin_x):
        x1, y1, x2, y2 = (SCALE * value - 0.5 for value in box)
        height, width = (y2 - y1) / BINS[0], (x2 - x1) / BINS[1]
        move_x, move_y = offset[n, :, bin_y, bin_x] if with_offset else (0, 0)
        start_y = y1 + bin_y * height + gamma * (y2 - y1) * move_y
        start_x = x1 + bin_x * width + gamma * (x2 - x1) * move_x
        return grid(start_y, start_x, height, width, ratio)

    moved = offset if with_offset else None
    output = mmcv_ops.deform_roi_pool(x, rois, moved, BINS, SCALE, ratio, gamma)
    tensors = (x, offset) if with_offset else x
    assert_same(output, loop(x, rois, samples), tensors)


def test_offset_that_is_not_finite_moves_its_bin_outside():
    x, rois, offset = features(), boxes(ROIS[:-1]), random(4, 2, *BINS, seed=2)
    settings = BINS, SCALE, 2, 0.1
    expected = mmcv_ops.deform_roi_pool(x, rois, offset, *settings)
    for value in (math.nan, math.inf):
        offset[0, :, 1, 2] = value
        output = mmcv_ops.deform_roi_pool(x, rois, offset, *settings)
        assert not output[0, :, 1, 2].any()
        output.data[0, :, 1, 2] = expected.data[0, :, 1, 2]
        torch.testing.assert_close(output, expected)


def hat_integral(low, high, pixel):
    """Integrate max(0, 1 - |t - pixel|) over t, piece by piece."""
    total = 0
    for start, end, slope in ((pixel - 1, pixel, 1), (pixel, pixel + 1, -1)):
        a, b = low.clamp(start, end), high.clamp(start, end)
        middle = (a + b) / 2
        total = total + (b - a) * (1 + slope * (middle - pixel))
    return total


def test_prroi_pool():
    x, rois = features().detach().float(), boxes(ROIS[:-1]).float()  # as mmcv asks
    rois[:, 1:] += 0.13  # away from pixels, where the loop's derivative is one-sided
    exact, exact_rois = (t.double().requires_grad_() for t in (x, rois))
    bins = []
    for roi, bin_y, bin_x in product(exact_rois, range(BINS[0]), range(BINS[1])):
        x1, y1, x2, y2 = roi[1:] * SCALE
        height, width = (y2 - y1) / BINS[0], (x2 - x1) / BINS[1]
        low_y, low_x = y1 + bin_y * height, x1 + bin_x * width
        rows = [hat_integral(low_y, low_y + height, y) for y in range(SHAPE[2])]
        columns = [hat_integral(low_x, low_x + width, x) for x in range(SHAPE[3])]
        weights = torch.stack(rows)[:, None] * torch.stack(columns)
        bins.append((weights * exact[int(roi[0])]).sum((1, 2)) / (height * width))
    expected = torch.stack(bins).view(len(rois), *BINS, -1).permute(0, 3, 1, 2)
    x.requires_grad_(), rois.requires_grad_()
    output = mmcv_ops.PrRoIPool(BINS, SCALE)(x, rois)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    direction = torch.arange(output.numel()).view_as(output).sin()
    grads = torch.autograd.grad(output, (x, rois), direction)
    wanted = torch.autograd.grad(expected, (exact, exact_rois), direction.double())
    for grad, exact_grad in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad.double(), exact_grad, rtol=1e-4, atol=1e-5)


POOLS = {
    'roi_align': lambda x, rois: mmcv_ops.roi_align(x, rois, BINS, SCALE, 0),
    'roi_align_max': lambda x, rois: mmcv_ops.roi_align(x, rois, BINS, SCALE, 0, 'max'),
    'roi_pool': lambda x, rois: mmcv_ops.roi_pool(x, rois, BINS, SCALE),
    'deform_roi_pool': lambda x, rois: mmcv_ops.deform_roi_pool(
        x, rois, None, BINS, SCALE, 0, 0.1
    ),
    'prroi_pool': lambda x, rois: mmcv_ops.prroi_pool(x, rois, BINS, SCALE),
    'roi_align_rotated': lambda x, rois: mmcv_ops.RoIAlignRotated(BINS, SCALE)(
        x, torch.cat([rois, rois[:, 3:4]], 1)
    ),
}


@pytest.mark.parametrize('pool', POOLS.values(), ids=POOLS)
def test_no_boxes_and_boxes_that_are_not_finite(pool):
    x, rois = features().detach().float().requires_grad_(), boxes().float()
    output = pool(x, rois[:0])
    assert output.shape == (0, SHAPE[1], *BINS)
    assert not torch.autograd.grad(output.sum(), x)[0].any()
    outside = pool(x, torch.tensor([[0.0, 60, 60, 60, 60]]))
    assert not outside.any() and not torch.autograd.grad(outside.sum(), x)[0].any()
    for value in (math.nan, math.inf, -math.inf):
        broken = torch.cat([torch.full((1, 5), value), rois])
        broken[0, 0] = 0
        output = pool(x, broken)
        torch.testing.assert_close(output[1:], pool(x, rois))
        assert torch.autograd.grad(output[1:].sum(), x)[0].isfinite().all()


def turned_samples(ratio, aligned, clockwise):
    shift, min_side = (0.5, 0) if aligned else (0, 1)

    def samples(n, box, bin_y, bin_x):
        x, y, width, height = (SCALE * value for value in box[:4])
        width, height = max(width, min_side), max(height, min_side)
        cos, sin = math.cos(box[4]), math.sin(box[4]) * (-1 if clockwise else 1)
        rows, columns = height / BINS[0], width / BINS[1]
        start = bin_y * rows - height / 2, bin_x * columns - width / 2
        return [
            (y - shift + down * cos - right * sin, x - shift + down * sin + right * cos)
            for down, right in grid(*start, rows, columns, ratio)
        ]

    return samples


@by_ratio
@by_aligned
@by_clockwise
def test_roi_align_rotated(clockwise, aligned, ratio):
    x, rois = features(), boxes(TURNED)
    layer = mmcv_ops.RoIAlignRotated(BINS, SCALE, ratio, aligned, clockwise)
    expected = loop(x, rois, turned_samples(ratio, aligned, clockwise))
    assert_same(layer(x, rois), expected, x)


@by_ratio
@by_clockwise
def test_riroi_align_rotated(clockwise, ratio):
    x, rois, orientations = features(), boxes(TURNED), 4
    layer = mmcv_ops.RiRoIAlignRotated(BINS, SCALE, ratio, orientations, clockwise)
    pooled = loop(x, rois, turned_samples(ratio, False, clockwise))
    expected = []
    for roi, of_box in zip(rois.tolist(), pooled, strict=True):
        turn = roi[5] * orientations / (2 * math.pi)
        first = math.floor(turn)
        for c in range(SHAPE[1]):
            group, o = c // orientations * orientations, c % orientations
            near = of_box[group + (o - first) % orientations]
            far = of_box[group + (o - first + 1) % orientations]
            expected.append((1 - (turn - first)) * near + (turn - first) * far)
    assert_same(layer(x, rois), torch.stack(expected).view(pooled.shape), x)


@pytest.mark.parametrize('points', [1, 5])
def test_rotated_feature_align(points):
    x, (B, C, H, W) = features(), SHAPE
    generator = torch.Generator().manual_seed(2)
    turned = torch.rand(B, H, W, 5, generator=generator, dtype=torch.float64)
    turned = turned * torch.tensor([14, 16, 8, 6, 6]) - torch.tensor([1, 1, 0, 0, 3])
    output = mmcv_ops.rotated_feature_align(x, turned, SCALE, points)
    corners = [(0, 0), *product((-1, 1), (-1, 1))][:points]
    expected = []
    for b, h, w in product(range(B), range(H), range(W)):
        at_y, at_x, width, height = (SCALE * v for v in turned[b, h, w, :4].tolist())
        cos, sin = (f(turned[b, h, w, 4].item()) / 2 for f in (math.cos, math.sin))
        total = x[b, :, h, w]
        for i, j in corners:
            right = at_x + i * cos * width - j * sin * height
            down = at_y + i * sin * width + j * cos * height
            total = total + bilinear(x[b], down, right)
        expected.append(total)
    assert_same(output, torch.stack(expected).view(B, H, W, C).permute(0, 3, 1, 2), x)


def test_active_rotated_filter():
    filters = random(3, 2, 4, 3, 3).requires_grad_()  # outputs, inputs, orientations
    entries, turns = 4 * 9, 5
    generator = torch.Generator().manual_seed(0)
    places = [torch.randperm(entries, generator=generator) for _ in range(turns)]
    indices = (torch.stack(places, 1) + 1).int().view(4, 3, 3, turns)
    output = mmcv_ops.active_rotated_filter(filters, indices)
    expected = torch.zeros(3, turns, 2, entries, dtype=torch.float64)
    for k, place in enumerate(places):
        expected[:, k, :, place] = filters.flatten(2)
    assert_same(output, expected.view(3 * turns, 2 * 4, 3, 3), filters)


@pytest.mark.parametrize('pool_size', [1, 4])
def test_border_align(pool_size):
    maps = random(2, 12, 5, 6).requires_grad_()
    corner = random(2, 30, 2, seed=2).abs() * 3 - 0.9
    given = torch.cat([corner, corner + random(2, 30, 2, seed=3).abs() * 2], 2)
    output = mmcv_ops.BorderAlign(pool_size)(maps, given)
    C, expected = 3, []
    for b, of_image in enumerate(given.tolist()):
        for (x1, y1, x2, y2), border in product(of_image, range(4)):
            corners = (y1, x1), (y1, x2), (y2, x2), (y2, x1)
            start = corners[2 * (border // 2)]  # upper left, or lower right
            end = corners[(1, 3, 3, 1)[border]]
            part = maps[b, border * C : (border + 1) * C]
            values = []
            for i in range(pool_size + 1):
                pairs = zip(start, end, strict=True)
                point = (a + i / pool_size * (b - a) for a, b in pairs)
                values.append(bilinear(part, *point))
            expected.append(torch.stack(values).amax(0))
    expected = torch.stack(expected).view(2, 30, 4, C).permute(0, 3, 1, 2)
    assert_same(output, expected, maps)


def curve(points, t):
    """De Casteljau's construction."""
    while len(points) > 1:
        pairs = zip(points, points[1:], strict=False)
        points = [
            [u + t * (v - u) for u, v in zip(a, b, strict=True)] for a, b in pairs
        ]
    return points[0]


@by_ratio
@by_aligned
def test_bezier_align(aligned, ratio):
    x = random(2, 3, 6, 9).requires_grad_()
    upper = torch.tensor([[1.0, 2], [4, 0], [8, 5], [14, 3]])
    lower = torch.tensor([[15.0, 9], [9, 12], [5, 8], [2, 10]])
    curves = torch.stack([upper, lower]).flatten() + random(4, 16, seed=3)
    beziers = torch.cat([torch.tensor([[0.0], [1], [1], [0]]), curves], 1)

    def samples(n, numbers, bin_y, bin_x):
        points = [[SCALE * v for v in numbers[i : i + 2]] for i in range(0, 16, 2)]
        lines = points[:4], points[:3:-1]
        width, height = (
            max(abs(line[0][i] - line[3][i]) for line in lines) for i in (0, 1)
        )
        if not aligned:
            width, height = max(width, 1), max(height, 1)
        height, width = height / BINS[0], width / BINS[1]
        ends = (curve(line, bin_x / BINS[1]) for line in lines)
        v = bin_y / BINS[0]
        across, down = (
            (1 - v) * a + v * b - 0.5 * aligned for a, b in zip(*ends, strict=True)
        )
        return grid(down - height / 2, across - width / 2, height, width, ratio)

    output = mmcv_ops.BezierAlign(BINS, SCALE, ratio, aligned)(x, beziers)
    assert_same(output, loop(x, beziers, samples), x)
