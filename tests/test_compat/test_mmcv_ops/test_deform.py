"""Deformable convolution and attention through mmcv's own functions, against loops."""

import math
from itertools import product

import pytest
import torch
from deform_conv_loops import bilinear, loop_deform_conv, output_size

mmcv_ops = pytest.importorskip('mmcv.ops')
from mmcv.ops.modulated_deform_conv import ModulatedDeformConv2dPack  # noqa: E402
from mmcv.ops.multi_scale_deform_attn import (  # noqa: E402
    MultiScaleDeformableAttnFunction,
)

pytestmark = pytest.mark.usefixtures('served_ops')

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


def assert_same_with_gradients(output, expected, tensors):
    torch.testing.assert_close(output, expected)
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    actual = torch.autograd.grad(output, tensors, direction.to(output.dtype))
    wanted = torch.autograd.grad(expected, tensors, direction.to(expected.dtype))
    torch.testing.assert_close(actual, wanted)


def positional(stride=1, padding=0, dilation=1, groups=1, deform_groups=1):
    return stride, padding, dilation, groups, deform_groups


@pytest.mark.parametrize('geometry', GEOMETRIES.values(), ids=GEOMETRIES)
def test_deform_conv2d(geometry):
    t = conv_inputs(**geometry)
    tensors = t['x'], t['offset'], t['weight']
    output = mmcv_ops.deform_conv2d(*tensors, *positional(**geometry))
    expected = loop_deform_conv(*tensors, None, None, **geometry)
    assert_same_with_gradients(output, expected, tensors)


@pytest.mark.parametrize('with_bias', [True, False], ids=['bias', 'no-bias'])
@pytest.mark.parametrize('geometry', GEOMETRIES.values(), ids=GEOMETRIES)
def test_modulated_deform_conv2d(geometry, with_bias):
    t = conv_inputs(**geometry)
    bias = t['bias'] if with_bias else None
    output = mmcv_ops.modulated_deform_conv2d(
        t['x'], t['offset'], t['mask'], t['weight'], bias, *positional(**geometry)
    )
    expected = loop_deform_conv(
        t['x'], t['offset'], t['weight'], t['mask'], bias, **geometry
    )
    used = [tensor for name, tensor in t.items() if with_bias or name != 'bias']
    assert_same_with_gradients(output, expected, used)


@pytest.mark.parametrize('offsets', ['zero', 'integer'])
@pytest.mark.parametrize('version', [1, 2], ids=['v1', 'v2'])
@pytest.mark.parametrize('geometry', PADDED, ids=['groups', 'everything'])
def test_gradients_at_integer_points(geometry, version, offsets):
    """Points lie on pixels, also at -1, H and W, where slopes depend on the side."""
    t = conv_inputs(**geometry)
    if offsets == 'zero':
        t['offset'].data.zero_()
    else:
        t['offset'].data.mul_(2).round_()
    tensors = t['x'], t['offset'], t['weight']
    if version == 1:
        output = mmcv_ops.deform_conv2d(*tensors, *positional(**geometry))
        expected = loop_deform_conv(*tensors, None, None, **geometry)
    else:
        order = 'x', 'offset', 'mask', 'weight', 'bias'
        tensors = [t[name] for name in order]
        output = mmcv_ops.modulated_deform_conv2d(*tensors, *positional(**geometry))
        x, offset, mask, weight, bias = tensors
        expected = loop_deform_conv(x, offset, weight, mask, bias, **geometry)
    assert_same_with_gradients(output, expected, tensors)


@pytest.mark.parametrize('version', [1, 2], ids=['v1', 'v2'])
def test_offset_layer_at_initialization(version):
    """mmcv's layers start with offsets of zero; this is their first gradient."""
    layer = mmcv_ops.DeformConv2dPack if version == 1 else ModulatedDeformConv2dPack
    torch.manual_seed(0)
    module = layer(C, OUT, 3, padding=1).double()
    x = torch.randn(1, C, 7, 7, dtype=torch.float64)
    direction = torch.randn(1, OUT, 7, 7, dtype=torch.float64)
    parameters = list(module.conv_offset.parameters())
    actual = torch.autograd.grad(module(x), parameters, direction)
    maps, mask, bias = module.conv_offset(x), None, None
    if version == 2:
        maps, mask = maps.split([18, 9], 1)
        mask, bias = mask.sigmoid(), module.bias
    out = loop_deform_conv(x, maps, module.weight, mask, bias, padding=1)
    assert actual[0].abs().max() > 0
    torch.testing.assert_close(actual, torch.autograd.grad(out, parameters, direction))


def larger_maps(t, size, strided=False):
    """Replaces the offsets and masks, of which the image may be a part in memory."""
    generator = torch.Generator().manual_seed(2)
    channels = t['offset'].size(1), t['mask'].size(1)
    maps = torch.randn(
        B, sum(channels), *size, generator=generator, dtype=torch.float64
    )
    offset, mask = (maps * 1.5).split(channels, 1)
    if not strided:
        offset, mask = offset.contiguous(), mask.contiguous()
    t.update(offset=offset.detach().requires_grad_(), mask=mask.requires_grad_())


@pytest.mark.parametrize(
    'size, strided', [((10, 12), True), ((9, 7), False), ((3, 90), False)], ids=str
)
@pytest.mark.parametrize('geometry', PADDED, ids=['groups', 'everything'])
def test_maps_larger_than_the_output(geometry, size, strided):
    """mmcv reads their first elements, as DyHead and GLIP were trained with."""
    t = conv_inputs(**geometry)
    larger_maps(t, size, strided)
    tensors = [t[name] for name in ('x', 'offset', 'mask', 'weight', 'bias')]
    output = mmcv_ops.modulated_deform_conv2d(*tensors, *positional(**geometry))
    x, offset, mask, weight, bias = tensors
    expected = loop_deform_conv(x, offset, weight, mask, bias, **geometry)
    assert_same_with_gradients(output, expected, tensors)


def test_only_one_of_the_maps_is_larger():
    t = conv_inputs()
    wanted = t['mask']
    larger_maps(t, (7, 9))
    t['mask'] = wanted
    tensors = [t[name] for name in ('x', 'offset', 'mask', 'weight', 'bias')]
    output = mmcv_ops.modulated_deform_conv2d(*tensors)
    x, offset, mask, weight, bias = tensors
    expected = loop_deform_conv(x, offset, weight, mask, bias)
    assert_same_with_gradients(output, expected, tensors)


def test_channels_last_maps_are_read_in_the_same_order():
    t = conv_inputs()
    larger_maps(t, (7, 9))
    order = 'x', 'offset', 'mask', 'weight', 'bias'
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        tensors = [t[name].detach() for name in order]
        for i in (1, 2):
            tensors[i] = tensors[i].contiguous(memory_format=memory_format)
        tensors = [tensor.requires_grad_() for tensor in tensors]
        out = mmcv_ops.modulated_deform_conv2d(*tensors)
        results.append((out, torch.autograd.grad(out.square().sum(), tensors)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize('name', ['offset', 'mask'])
def test_maps_smaller_than_the_output(name):
    t = {name: tensor.detach() for name, tensor in conv_inputs().items()}
    t[name] = t[name][:, :, :-1]
    order = 'x', 'offset', 'mask', 'weight', 'bias'
    with pytest.raises(ValueError, match=rf'{name} .* at least the 15 .*\(3, 5\), got'):
        mmcv_ops.modulated_deform_conv2d(*[t[name] for name in order])


@pytest.mark.parametrize('version', [1, 2], ids=['v1', 'v2'])
def test_gradient_of_the_weight_alone(version):
    """mmcv then asks for no other gradient."""
    t = {name: tensor.detach() for name, tensor in conv_inputs().items()}
    weight = t['weight'].requires_grad_()
    if version == 1:
        output = mmcv_ops.deform_conv2d(t['x'], t['offset'], weight)
        mask = None
    else:
        mask = t['mask']
        output = mmcv_ops.modulated_deform_conv2d(t['x'], t['offset'], mask, weight)
    expected = loop_deform_conv(t['x'], t['offset'], weight, mask, None)
    assert_same_with_gradients(output, expected, [weight])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('version', [1, 2], ids=['v1', 'v2'])
def test_half_precision_is_computed_in_float32(version, dtype):
    t = {name: tensor.detach().to(dtype) for name, tensor in conv_inputs().items()}
    exact = {name: tensor.double().requires_grad_() for name, tensor in t.items()}
    if version == 1:
        order = 'x', 'offset', 'weight'
        expected = mmcv_ops.deform_conv2d(*[exact[name] for name in order])
    else:
        order = 'x', 'offset', 'mask', 'weight', 'bias'
        expected = mmcv_ops.modulated_deform_conv2d(*[exact[name] for name in order])
    call = mmcv_ops.deform_conv2d if version == 1 else mmcv_ops.modulated_deform_conv2d
    tensors = [t[name].requires_grad_() for name in order]
    output = call(*tensors)
    assert output.dtype == dtype
    torch.testing.assert_close(output, expected.to(dtype))
    actual = torch.autograd.grad(output.sum(), tensors)
    wanted = torch.autograd.grad(expected.sum(), [exact[name] for name in order])
    for gradient, reference in zip(actual, wanted, strict=True):
        torch.testing.assert_close(gradient, reference.to(dtype))


def loop_ms_deform_attn(value, shapes, locations, weights):
    B, Q, M, L, P, _ = locations.shape
    rows = []
    for b, q, m in product(range(B), range(Q), range(M)):
        total, start = 0, 0
        for level, (height, width) in enumerate(shapes.tolist()):
            pixels = value[b, start : start + height * width, m]
            image = pixels.T.reshape(-1, height, width)
            start += height * width
            for p in range(P):
                x, y = locations[b, q, m, level, p]
                sample = bilinear(image, y * height - 0.5, x * width - 0.5)
                total = total + weights[b, q, m, level, p] * sample
        rows.append(total)
    return torch.stack(rows).view(B, Q, -1)


def test_ms_deform_attn():
    """mmcv uses these two functions on CUDA only; they are the same on the CPU."""
    generator = torch.Generator().manual_seed(0)
    shapes = torch.tensor([[4, 5], [2, 3]])
    starts = torch.tensor([0, 20])
    B, Q, M, D, P = 2, 3, 2, 4, 2
    value = torch.randn(B, 26, M, D, generator=generator, dtype=torch.float64)
    locations = torch.rand(B, Q, M, 2, P, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(B, Q, M, 2, P, generator=generator, dtype=torch.float64)
    # From 0.3 left of and above the image to 0.3 past it.
    locations = locations * 1.6 - 0.3
    tensors = [tensor.requires_grad_() for tensor in (value, locations, weights)]
    output = MultiScaleDeformableAttnFunction.apply(
        value, shapes, starts, locations, weights, 64
    )
    expected = loop_ms_deform_attn(value, shapes, locations, weights)
    assert_same_with_gradients(output, expected, tensors)


@pytest.mark.parametrize('version', [1, 2], ids=['v1', 'v2'])
def test_points_that_are_not_finite_are_outside(version):
    """torchvision alone would read outside the map and may crash."""
    t = conv_inputs(**PADDED[0])
    tensors = t['x'], t['offset'], t['weight']
    lost = (
        torch.rand(t['offset'].shape, generator=torch.Generator().manual_seed(7)) < 0.2
    )
    results = []
    for value in (math.nan, -math.inf, 1e6):
        offset = t['offset'].detach().masked_fill(lost, value).requires_grad_()
        tensors = [t['x'], offset, t['weight']]
        arguments = positional(**PADDED[0])
        if version == 1:
            output = mmcv_ops.deform_conv2d(*tensors, *arguments)
        else:
            tensors.insert(2, t['mask'])
            output = mmcv_ops.modulated_deform_conv2d(*tensors, None, *arguments)
        results.append([output, *torch.autograd.grad(output.sum(), tensors)])
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[2])
