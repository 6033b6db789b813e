"""Deformable convolution through mmcv's functions, against mmcv's in loops."""

import math
from itertools import product

import pytest
import torch
from mmcv import ops as mmcv_ops
from same_results import assert_same

pytestmark = pytest.mark.usefixtures('our_ops')


GEOMETRIES = {
    'plain': {},
    'stride': {'stride': (2, 1), 'padding': (0, 1)},
    'dilation': {'padding': (2, 1), 'dilation': (2, 1)},
    'groups': {'padding': 1, 'groups': 2},
    'deform-groups': {'padding': 1, 'deform_groups': 2},
    'everything': {
        'stride': (1, 2),
        'padding': (2, 1),
        'dilation': (1, 2),
        'groups': 2,
        'deform_groups': 2,
    },
}
PADDED = GEOMETRIES['groups'], GEOMETRIES['everything']
B, C, H, W = 2, 4, 5, 6
OUT, KH, KW = 6, 3, 2


def conv_inputs(stride=1, padding=0, dilation=1, groups=1, deform_groups=1):
    """x, offset, mask, weight, bias in float64; some points fall outside the image."""
    generator = torch.Generator().manual_seed(0)
    size = output_size((H, W), (KH, KW), stride, padding, dilation)
    points = deform_groups * KH * KW
    shapes = {
        'x': (B, C, H, W),
        'offset': (B, 2 * points, *size),
        'mask': (B, points, *size),
        'weight': (OUT, C // groups, KH, KW),
        'bias': (OUT,),
    }
    tensors = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        scale = 1.5 if name == 'offset' else 1.0
        tensors[name] = (value * scale).requires_grad_()
    return tensors


def positional(stride=1, padding=0, dilation=1, groups=1, deform_groups=1):
    return stride, padding, dilation, groups, deform_groups


def tensors_of(t, version):
    """Return the tensors that a version takes, without a bias where there is none."""
    names = {1: ('x', 'offset', 'weight'), 2: ('x', 'offset', 'mask', 'weight', 'bias')}
    return [t[name] for name in names[version] if name in t]


def convolve(version, tensors, geometry):
    """Call mmcv's function of a version with the tensors that it takes."""
    if version == 1:
        return mmcv_ops.deform_conv2d(*tensors, *positional(**geometry))
    tensors = [*tensors, None][:5]
    return mmcv_ops.modulated_deform_conv2d(*tensors, *positional(**geometry))


def in_loops(version, tensors, geometry):
    x, offset, *masks, weight = tensors[: 2 + version]
    mask, bias = [*masks, None][0], [*tensors[4:], None][0]
    return loop_deform_conv(x, offset, weight, mask, bias, **geometry)


def check_against_loops(version, t, geometry):
    tensors = tensors_of(t, version)
    output = convolve(version, tensors, geometry)
    assert_same(output, in_loops(version, tensors, geometry), tensors)


every_version = pytest.mark.parametrize('version', [1, 2], ids=['v1', 'v2'])


@every_version
@pytest.mark.parametrize('geometry', GEOMETRIES.values(), ids=GEOMETRIES)
def test_deform_conv2d(geometry, version):
    t = conv_inputs(**geometry)
    if 'stride' in geometry:
        del t['bias']
    check_against_loops(version, t, geometry)


@pytest.mark.parametrize(
    ('geometry', 'version', 'scale'),
    [(PADDED[0], 1, 2), (PADDED[1], 2, 0), (PADDED[1], 2, 2)],
)
def test_gradients_at_integer_points(geometry, version, scale):
    """Points lie on pixels, also at -1, H and W, where slopes depend on the side."""
    t = conv_inputs(**geometry)
    t['offset'].data.mul_(scale).round_()
    check_against_loops(version, t, geometry)


@pytest.mark.parametrize(
    ('geometry', 'size', 'strided'),
    [(PADDED[0], (10, 12), True), (PADDED[1], (3, 90), False)],
    ids=['groups', 'everything'],
)
def test_maps_larger_than_the_output(geometry, size, strided):
    """mmcv reads their first elements, as DyHead and GLIP were trained with.

    The image of a map may be a part of another in memory.
    """
    t = conv_inputs(**geometry)
    generator = torch.Generator().manual_seed(2)
    channels = t['offset'].size(1), t['mask'].size(1)
    shape = B, sum(channels), *size
    maps = torch.randn(shape, generator=generator, dtype=torch.float64) * 1.5
    for name, part in zip(('offset', 'mask'), maps.split(channels, 1), strict=True):
        t[name] = (part if strided else part.contiguous()).requires_grad_()
    check_against_loops(2, t, geometry)


@pytest.mark.parametrize('name', ['offset', 'mask'])
def test_maps_smaller_than_the_output(name):
    t = {name: tensor.detach() for name, tensor in conv_inputs().items()}
    t[name] = t[name][:, :, :-1]
    with pytest.raises(ValueError, match=rf'{name} .* at least the 15 .*\(3, 5\), got'):
        convolve(2, tensors_of(t, 2), {})


@every_version
def test_gradient_of_the_weight_alone(version):
    """mmcv then asks for no other gradient."""
    t = {name: tensor.detach() for name, tensor in conv_inputs().items()}
    weight = t['weight'].requires_grad_()
    tensors = tensors_of(t, version)
    output, expected = convolve(version, tensors, {}), in_loops(version, tensors, {})
    assert_same(output, expected, [weight])


@every_version
def test_points_that_are_not_finite_are_outside(version):
    """torchvision alone would read outside the map and may crash."""
    t = conv_inputs(**PADDED[0])
    lost = (
        torch.rand(t['offset'].shape, generator=torch.Generator().manual_seed(7)) < 0.2
    )
    results = []
    for value in (math.nan, -math.inf, 1e6):
        offset = t['offset'].detach().masked_fill(lost, value).requires_grad_()
        tensors = tensors_of(t | dict(offset=offset), version)
        output = convolve(version, tensors, PADDED[0])
        results.append([output, *torch.autograd.grad(output.sum(), tensors)])
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[2])


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


def output_size(sides, kernel, stride, padding, dilation):
    stride, padding, dilation = pair(stride), pair(padding), pair(dilation)
    return [
        (side + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i, side in enumerate(sides)
    ]


def bilinear(image, y, x):
    """Value of `image` (C, H, W) at a point, zero outside, with gradients for y, x.

    As in mmcv, a point inside is strictly between -1 and H or W. The gradients
    belong to the square right below, also on its upper and left side.
    """
    H, W = image.shape[1:]
    value = image.new_zeros(image.size(0))
    if not (-1 < y < H and -1 < x < W):
        return value
    top, left = math.floor(y.item()), math.floor(x.item())
    rows = {top: top + 1 - y, top + 1: y - top}
    columns = {left: left + 1 - x, left + 1: x - left}
    for row, column in product(rows, columns):
        if 0 <= row < H and 0 <= column < W:
            value = value + rows[row] * columns[column] * image[:, row, column]
    return value


def loop_deform_conv(
    x, offset, weight, mask, bias, *, stride=1, padding=0, dilation=1, groups=1,
    deform_groups=1
):  # fmt: skip
    """The convolution, which reads `offset` and `mask` as mmcv does.

    An image of them is a line of numbers, indexed with the output's height and width.
    """
    B, C, *sides = x.shape
    OUT, _, KH, KW = weight.shape
    OH, OW = output_size(sides, (KH, KW), stride, padding, dilation)
    stride, padding, dilation = pair(stride), pair(padding), pair(dilation)
    # Channels of the input that share offsets, (B, deform_groups, C', H, W).
    shared = x.view(B, deform_groups, -1, *sides)
    members = torch.arange(C).view(deform_groups, -1)
    offset = offset.flatten(1)
    mask = None if mask is None else mask.flatten(1)
    rows = []
    for b, oy, ox in product(range(B), range(OH), range(OW)):
        patch = x.new_zeros(C, KH, KW)
        for g, ky, kx in product(range(deform_groups), range(KH), range(KW)):
            point = (g * KH + ky) * KW + kx
            dy, dx = (
                offset[b, ((2 * point + axis) * OH + oy) * OW + ox] for axis in (0, 1)
            )
            y = oy * stride[0] - padding[0] + ky * dilation[0] + dy
            x_ = ox * stride[1] - padding[1] + kx * dilation[1] + dx
            value = bilinear(shared[b, g], y, x_)
            if mask is not None:
                value = value * mask[b, (point * OH + oy) * OW + ox]
            taps = torch.tensor(ky), torch.tensor(kx)
            patch = patch.index_put((members[g], *taps), value)
        patches = patch.view(groups, -1)
        weights = weight.view(groups, OUT // groups, -1)
        rows.append(torch.einsum('gok,gk->go', weights, patches).flatten())
    out = torch.stack(rows).view(B, OH, OW, OUT).permute(0, 3, 1, 2)
    return out if bias is None else out + bias[:, None, None]
