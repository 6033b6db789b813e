"""RoIPool and its relatives through mmcv's own functions, against loops over bins."""

import math

import pytest
import torch
from pooling_loops import bilinear

mmcv_ops = pytest.importorskip('mmcv.ops')
pytestmark = pytest.mark.usefixtures('served_ops')

SHAPE = 2, 3, 5, 7
BINS = 2, 3
SCALE = 0.5
# Inside, reaching past two borders, thinner than a pixel, far outside.
ROIS = [
    [0, 1.2, 0.7, 9.1, 8.3],
    [1, -3.0, -2.0, 16.5, 12.0],
    [1, 4.0, 3.0, 4.6, 9.0],
    [0, 60.0, 60.0, 70.0, 64.0],
]
POOLS = {
    'roi_pool': lambda x, rois: mmcv_ops.roi_pool(x, rois, BINS, SCALE),
    'deform_roi_pool': lambda x, rois: mmcv_ops.deform_roi_pool(
        x, rois, None, BINS, SCALE, 0, 0.1
    ),
    'prroi_pool': lambda x, rois: mmcv_ops.prroi_pool(x, rois, BINS, SCALE),
}


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    rois = torch.tensor(ROIS, dtype=dtype)
    offset = torch.randn(len(ROIS), 2, *BINS, generator=generator, dtype=torch.float64)
    return features.to(dtype).requires_grad_(), rois, offset.to(dtype).requires_grad_()


def assert_same_gradients(output, expected, tensors, **tolerances):
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(output.shape, generator=generator).to(output)
    grads = [torch.autograd.grad(o, tensors, direction) for o in (output, expected)]
    torch.testing.assert_close(*grads, **tolerances)


def loop_over_bins(features, rois, pool_bin):
    bins = [
        pool_bin(features[int(image)], n, box, bin_y, bin_x)
        for n, (image, *box) in enumerate(rois)
        for bin_y in range(BINS[0])
        for bin_x in range(BINS[1])
    ]
    return torch.stack(bins).view(len(rois), *BINS, -1).permute(0, 3, 1, 2)


def max_of_bin(image, n, box, bin_y, bin_x):
    x1, y1 = (SCALE * value for value in box[:2])
    x2, y2 = (SCALE * (value + 1) for value in box[2:])
    H, W = image.shape[1:]
    if x2 <= x1 or y2 <= y1:
        return image.new_zeros(image.size(0))
    rows = range(
        max(math.floor(y1 + bin_y * (y2 - y1) / BINS[0]), 0),
        min(math.ceil(y1 + (bin_y + 1) * (y2 - y1) / BINS[0]), H),
    )
    columns = range(
        max(math.floor(x1 + bin_x * (x2 - x1) / BINS[1]), 0),
        min(math.ceil(x1 + (bin_x + 1) * (x2 - x1) / BINS[1]), W),
    )
    pixels = [image[:, y, x] for y in rows for x in columns]
    return torch.stack(pixels).amax(0) if pixels else image.new_zeros(image.size(0))


def test_roi_pool():
    features, rois, _ = inputs()
    no_area = torch.tensor([[1, 4.6, 4, 3.2, 9]], dtype=rois.dtype)
    rois = torch.cat([rois, no_area])
    output = mmcv_ops.RoIPool(BINS, SCALE)(features, rois)
    expected = loop_over_bins(features, rois.tolist(), max_of_bin)
    torch.testing.assert_close(output, expected)
    assert_same_gradients(output, expected, features)


@pytest.mark.parametrize('ratio', [0, 2], ids=['dense', 'ratio-2'])
@pytest.mark.parametrize('with_offset', [False, True], ids=['fixed', 'offset'])
def test_deform_roi_pool(with_offset, ratio):
    features, rois, offset = inputs()
    gamma = 0.3

    def mean_of_bin(image, n, box, bin_y, bin_x):
        x1, y1, x2, y2 = (SCALE * value - 0.5 for value in box)
        height, width = (y2 - y1) / BINS[0], (x2 - x1) / BINS[1]
        move_x, move_y = offset[n, :, bin_y, bin_x] if with_offset else (0, 0)
        start_y = y1 + bin_y * height + gamma * (y2 - y1) * move_y
        start_x = x1 + bin_x * width + gamma * (x2 - x1) * move_x
        number_y, number_x = ratio or math.ceil(height), ratio or math.ceil(width)
        samples = [
            bilinear(
                image,
                start_y + (i + 0.5) * height / number_y,
                start_x + (j + 0.5) * width / number_x,
            )
            for i in range(number_y)
            for j in range(number_x)
        ]
        return torch.stack(samples).mean(0)

    moved = offset if with_offset else None
    output = mmcv_ops.deform_roi_pool(features, rois, moved, BINS, SCALE, ratio, gamma)
    expected = loop_over_bins(features, rois.tolist(), mean_of_bin)
    torch.testing.assert_close(output, expected)
    tensors = (features, offset) if with_offset else (features,)
    assert_same_gradients(output, expected, tensors)


def test_deform_roi_pool_packs():
    features, rois, _ = inputs(torch.float32)
    for name in ('DeformRoIPoolPack', 'ModulatedDeformRoIPoolPack'):
        layer = getattr(mmcv_ops, name)(BINS, SHAPE[1], 8, SCALE)
        output = layer(features, rois)
        assert output.shape == (len(ROIS), SHAPE[1], *BINS)
        output.sum().backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters())


def hat_integral(low, high, pixel):
    """Integrate max(0, 1 - |t - pixel|) over t, piece by piece."""
    total = 0
    for start, end, slope in ((pixel - 1, pixel, 1), (pixel, pixel + 1, -1)):
        a, b = low.clamp(start, end), high.clamp(start, end)
        middle = (a + b) / 2
        total = total + (b - a) * (1 + slope * (middle - pixel))
    return total


def test_prroi_pool():
    features, rois, _ = inputs(torch.float32)  # mmcv refuses other dtypes
    rois[:, 1:] += 0.13  # away from pixels, where the loop's derivative is one-sided
    exact, exact_rois = (t.detach().double().requires_grad_() for t in (features, rois))
    rois.requires_grad_()

    def mean_of_bin(image, n, box, bin_y, bin_x):
        x1, y1, x2, y2 = exact_rois[n, 1:] * SCALE
        height, width = (y2 - y1) / BINS[0], (x2 - x1) / BINS[1]
        low_y, low_x = y1 + bin_y * height, x1 + bin_x * width
        total = 0
        for y in range(SHAPE[2]):
            weight = hat_integral(low_y, low_y + height, y)
            for x in range(SHAPE[3]):
                own = weight * hat_integral(low_x, low_x + width, x)
                total = total + own * image[:, y, x]
        return total / (height * width)

    output = mmcv_ops.PrRoIPool(BINS, SCALE)(features, rois)
    expected = loop_over_bins(exact, rois.tolist(), mean_of_bin)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5)
    for tensor, peer in ((features, exact), (rois, exact_rois)):
        direction = torch.arange(output.numel()).view_as(output).sin()
        (grad,) = torch.autograd.grad(output, tensor, direction, retain_graph=True)
        (expected_grad,) = torch.autograd.grad(
            expected, peer, direction.double(), retain_graph=True
        )
        torch.testing.assert_close(grad.double(), expected_grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('name', ['roi_pool', 'deform_roi_pool'])
def test_pools_in_half_precision(name, dtype):
    features, rois, _ = inputs(dtype)
    output = POOLS[name](features, rois)
    exact = features.detach().double().requires_grad_()
    expected = POOLS[name](exact, rois.double())
    assert output.dtype == dtype
    torch.testing.assert_close(output, expected.to(dtype))
    grads = [
        torch.autograd.grad(o.sum(), x)[0]
        for o, x in ((output, features), (expected, exact))
    ]
    torch.testing.assert_close(grads[0], grads[1].to(dtype))


@pytest.mark.parametrize('pool', POOLS.values(), ids=POOLS)
def test_no_boxes_and_boxes_without_area(pool):
    features, rois, _ = inputs(torch.float32)
    output = pool(features, rois[:0])
    assert output.shape == (0, SHAPE[1], *BINS)
    assert not torch.autograd.grad(output.sum(), features)[0].any()
    outside = torch.tensor([[0.0, 60, 60, 60, 60]])
    output = pool(features, outside)
    assert not output.any()
    assert not torch.autograd.grad(output.sum(), features)[0].any()


@pytest.mark.parametrize('name', ['roi_pool', 'deform_roi_pool'])
def test_pools_of_channels_last_maps(name):
    features, rois, _ = inputs(torch.float32)
    expected = POOLS[name](features, rois)
    output = POOLS[name](features.to(memory_format=torch.channels_last), rois)
    torch.testing.assert_close(output, expected)
    assert_same_gradients(output, expected, features)


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('pool', POOLS.values(), ids=POOLS)
def test_box_that_is_not_finite_changes_no_other(pool, value):
    features, rois, _ = inputs(torch.float32)
    broken = torch.cat([torch.full((1, 5), value), rois])
    broken[0, 0] = 0
    torch.testing.assert_close(pool(features, broken)[1:], pool(features, rois))


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_offset_that_is_not_finite_moves_its_bin_outside(value):
    features, rois, offset = inputs(torch.float32)
    offset = offset.detach()
    settings = BINS, SCALE, 2, 0.1
    expected = mmcv_ops.deform_roi_pool(features, rois, offset, *settings)
    offset[0, :, 1, 2] = value
    output = mmcv_ops.deform_roi_pool(features, rois, offset, *settings)
    assert not output[0, :, 1, 2].any()
    output.data[0, :, 1, 2] = expected.data[0, :, 1, 2]
    torch.testing.assert_close(output, expected)
