"""Pooling in boxes through mmcv's functions, against loops over bins and samples."""

import math
from itertools import product

import pytest
import torch
from mmcv import ops as mmcv_ops
from same_results import assert_same

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
by_ratio = pytest.mark.parametrize('ratio', [0, 2], ids=['dense', 'ratio-2'])
by_aligned = pytest.mark.parametrize(
    'aligned', [True, False], ids=['aligned', 'legacy']
)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def features():
    return random(*SHAPE).requires_grad_()


def boxes(rois=ROIS):
    return torch.tensor(rois, dtype=torch.float64)


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


@by_ratio
@by_aligned
def test_roi_align(aligned, ratio):
    def samples(n, box, bin_y, bin_x):
        x1, y1, x2, y2 = (SCALE * value - 0.5 * aligned for value in box)
        height, width = y2 - y1, x2 - x1
        if not aligned:
            height, width = max(height, 1), max(width, 1)
        height, width = height / BINS[0], width / BINS[1]
        return grid(y1 + bin_y * height, x1 + bin_x * width, height, width, ratio)

    x, rois = features(), boxes()
    if aligned and not ratio:  # a box without area has no sample, and is 0
        last = mmcv_ops.roi_align(x, rois[-1:], BINS, SCALE, ratio, 'avg', aligned)
        assert not last.any() and not torch.autograd.grad(last.sum(), x)[0].any()
        rois = rois[:-1]
    output = mmcv_ops.roi_align(x, rois, BINS, SCALE, ratio, 'avg', aligned)
    assert_same(output, loop(x, rois, samples), x)
    with pytest.raises(NotImplementedError, match="pool_mode='max'"):
        mmcv_ops.roi_align(x, rois, BINS, SCALE, ratio, 'max', aligned)


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


POOLS = {
    'roi_align': lambda x, rois: mmcv_ops.roi_align(x, rois, BINS, SCALE, 0),
    'roi_pool': lambda x, rois: mmcv_ops.roi_pool(x, rois, BINS, SCALE),
    'deform_roi_pool': lambda x, rois: mmcv_ops.deform_roi_pool(
        x, rois, None, BINS, SCALE, 0, 0.1
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
