"""Our operators against the same calls of a compiled mmcv, where there is one.

Every call follows mmcv's own convention, in-place outputs included. The focal losses
are compiled for CUDA only and are compared there.
"""

import importlib

import pytest
import torch

from mmattn.compat import IMPLEMENTATION, activate

activate()
pytest.importorskip('mmcv')

from mmattn.compat import mmcv_ops  # noqa: E402

pytestmark = pytest.mark.slow
DEVICES = ['cpu', pytest.param('cuda', marks=pytest.mark.gpu)]


@pytest.fixture(scope='module')
def compiled():
    module = importlib.import_module('mmcv._ext')
    if module.__spec__.origin == IMPLEMENTATION:
        pytest.skip('this mmcv was installed without compiled operators')
    return module


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == 'cuda' and not torch.cuda.is_available():
        pytest.skip('no CUDA device')
    return request.param


def random(*shape, seed=0, device='cpu'):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device)


def random_boxes(number, device):
    corner = random(number, 2).abs() * 20
    boxes = torch.cat([corner, corner + random(number, 2, seed=1).abs() * 20 + 1], 1)
    scores = torch.randperm(number, generator=torch.Generator().manual_seed(2))
    return boxes.to(device), ((scores + 1) / (number + 1)).to(device)


def assert_same_outputs(call, compiled):
    """`call(module)` runs one operator and returns its results, new ones each time."""
    torch.testing.assert_close(call(mmcv_ops), call(compiled))


@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('number', [0, 1, 300])
def test_nms(compiled, device, number, offset):
    boxes, scores = random_boxes(number, device)
    assert_same_outputs(
        lambda ops: ops.nms(boxes, scores, iou_threshold=0.5, offset=offset), compiled
    )


@pytest.mark.parametrize('ties', [False, True], ids=['distinct', 'ties'])
@pytest.mark.parametrize('offset', [0, 1])
@pytest.mark.parametrize('method', [0, 1, 2], ids=['naive', 'linear', 'gaussian'])
def test_softnms(compiled, method, offset, ties):
    boxes, scores = random_boxes(300, 'cpu')
    if ties:
        scores = (scores * 5).ceil() / 5

    def call(ops):
        dets = torch.zeros(300, 5)
        kept = ops.softnms(
            boxes,
            scores,
            dets,
            iou_threshold=0.4,
            sigma=0.5,
            min_score=0.05,
            method=method,
            offset=offset,
        )
        return kept, dets[: len(kept)]

    assert_same_outputs(call, compiled)


def test_nms_match(compiled):
    boxes, scores = random_boxes(300, 'cpu')
    dets = torch.cat([boxes, scores[:, None]], 1)
    groups = compiled.nms_match(dets, iou_threshold=0.5)
    assert mmcv_ops.nms_match(dets, iou_threshold=0.5) == groups


@pytest.mark.parametrize('pool_mode', [0, 1], ids=['max', 'avg'])
@pytest.mark.parametrize('ratio', [0, 2])
@pytest.mark.parametrize('aligned', [True, False])
def test_roi_align(compiled, device, aligned, ratio, pool_mode):
    features = random(2, 3, 20, 30, device=device)
    boxes, _ = random_boxes(20, device)
    rois = torch.cat([torch.arange(20, device=device)[:, None] % 2, boxes], 1)
    geometry = {
        'aligned_height': 7,
        'aligned_width': 5,
        'spatial_scale': 0.5,
        'sampling_ratio': ratio,
        'pool_mode': pool_mode,
        'aligned': aligned,
    }

    def call(ops):
        output = features.new_zeros(20, 3, 7, 5)
        number = output.numel() if pool_mode == 0 else 0
        argmax_y = features.new_zeros(number).view(-1, *output.shape[1:])
        argmax_x = torch.zeros_like(argmax_y)
        argmax = argmax_y, argmax_x
        ops.roi_align_forward(features, rois, output, *argmax, **geometry)
        grad = torch.zeros_like(features)
        direction = random(*output.shape, seed=3, device=device)
        ops.roi_align_backward(direction, rois, *argmax, grad, **geometry)
        return output, argmax, grad

    assert_same_outputs(call, compiled)


CONVOLUTIONS = {
    'plain': (1, 1, 0, 1, 1),
    'strides': (2, 1, 1, 1, 1),
    'dilation-groups': (1, 2, 2, 2, 1),
    'deform-groups': (1, 1, 1, 1, 2),
    'everything': (2, 2, 1, 2, 2),
}


OFFSETS = ['random', 'integer', 'zero']


def convolution(
    stride, dilation, padding, groups, deform_groups, device, offsets='random', larger=0
):
    size = (12 + 2 * padding - dilation * 2 - 1) // stride + 1
    points = deform_groups * 9
    shapes = {
        'input': (2, 4, 12, 12),
        'weight': (6, 4 // groups, 3, 3),
        'bias': (6,),
        'offset': (2, 2 * points, size + larger, size + larger),
        'mask': (2, points, size + larger, size + larger),
        'output': (2, 6, size, size),
    }
    tensors = {
        name: random(*shape, seed=seed, device=device)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    if offsets != 'random':  # points on pixels, where slopes depend on the side
        tensors['offset'].mul_(0 if offsets == 'zero' else 2).round_()
    return tensors


@pytest.mark.parametrize('offsets', OFFSETS)
@pytest.mark.parametrize('geometry', CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_deform_conv(compiled, device, geometry, offsets):
    t = convolution(*geometry, device, offsets)
    stride, dilation, padding, groups, deform_groups = geometry
    settings = {
        **{'kW': 3, 'kH': 3, 'dW': stride, 'dH': stride},
        **{'padW': padding, 'padH': padding},
        **{'dilationW': dilation, 'dilationH': dilation},
        **{'group': groups, 'deformable_group': deform_groups, 'im2col_step': 2},
    }

    def call(ops):
        x, weight, offset = t['input'], t['weight'], t['offset']
        scratch = [x.new_empty(0), x.new_empty(0)]
        output = torch.zeros_like(t['output'])
        ops.deform_conv_forward(x, weight, offset, output, *scratch, **settings)
        grads = [torch.zeros_like(tensor) for tensor in (x, offset, weight)]
        direction = t['output']
        ops.deform_conv_backward_input(
            x, offset, direction, *grads[:2], weight, scratch[0], **settings
        )
        ops.deform_conv_backward_parameters(
            x, offset, direction, grads[2], *scratch, scale=1, **settings
        )
        return output, grads

    assert_same_outputs(call, compiled)


@pytest.mark.parametrize('with_bias', [True, False], ids=['bias', 'no-bias'])
@pytest.mark.parametrize('larger', [0, 3], ids=['same-size', 'larger-maps'])
@pytest.mark.parametrize('offsets', OFFSETS)
@pytest.mark.parametrize('geometry', CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_modulated_deform_conv(compiled, device, geometry, offsets, larger, with_bias):
    t = convolution(*geometry, device, offsets, larger)
    stride, dilation, padding, groups, deform_groups = geometry
    settings = {
        **{'kernel_h': 3, 'kernel_w': 3, 'stride_h': stride, 'stride_w': stride},
        **{'pad_h': padding, 'pad_w': padding},
        **{'dilation_h': dilation, 'dilation_w': dilation},
        **{'group': groups, 'deformable_group': deform_groups, 'with_bias': with_bias},
    }

    def call(ops):
        x, weight, offset, mask = t['input'], t['weight'], t['offset'], t['mask']
        bias = t['bias'] if with_bias else x.new_empty(0)
        ones, columns = x.new_empty(0), x.new_empty(0)
        output = torch.zeros_like(t['output'])
        ops.modulated_deform_conv_forward(
            x, weight, bias, ones, offset, mask, output, columns, **settings
        )
        grads = [torch.zeros_like(v) for v in (x, weight, bias, offset, mask)]
        ops.modulated_deform_conv_backward(
            *(x, weight, bias, ones, offset, mask, columns, *grads, t['output']),
            **settings,
        )
        return output, grads

    assert_same_outputs(call, compiled)


def rotated_boxes(number, device):
    scale = torch.tensor([30.0, 30, 20, 12, 3])
    base = torch.tensor([0.0, 0, 2, 2, 0])
    return (random(number, 5).abs() * scale + base).to(device)


@pytest.mark.parametrize('mode', [0, 1], ids=['iou', 'iof'])
def test_box_iou_rotated(compiled, device, mode):
    boxes = rotated_boxes(60, device)
    others = rotated_boxes(80, device)[20:].flip(1)[:, [3, 4, 2, 1, 0]].contiguous()

    def call(ops):
        ious = boxes.new_zeros(60 * 60)
        ops.box_iou_rotated(boxes, others, ious, mode_flag=mode, aligned=False)
        return ious

    torch.testing.assert_close(call(mmcv_ops), call(compiled), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('ratio', [0, 2])
@pytest.mark.parametrize('aligned', [True, False])
def test_roi_align_rotated(compiled, device, aligned, ratio):
    features = random(2, 3, 20, 30, device=device)
    images = torch.arange(20, device=device)[:, None] % 2
    rois = torch.cat([images, rotated_boxes(20, device)], 1)
    geometry = {
        **{'pooled_height': 7, 'pooled_width': 5, 'spatial_scale': 0.5},
        **{'sampling_ratio': ratio, 'aligned': aligned, 'clockwise': True},
    }

    def call(ops):
        output, grad = features.new_zeros(20, 3, 7, 5), torch.zeros_like(features)
        ops.roi_align_rotated_forward(features, rois, output, **geometry)
        direction = random(*output.shape, seed=3, device=device)
        ops.roi_align_rotated_backward(direction, rois, grad, **geometry)
        return output, grad

    torch.testing.assert_close(call(mmcv_ops), call(compiled), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('points', [1, 5])
def test_rotated_feature_align(compiled, device, points):
    features = random(1, 3, 10, 12, device=device)
    boxes = rotated_boxes(120, device).view(1, 10, 12, 5)
    settings = {'spatial_scale': 0.25, 'points': points}

    def call(ops):
        output, grad = torch.zeros_like(features), torch.zeros_like(features)
        ops.rotated_feature_align_forward(features, boxes, output, **settings)
        ops.rotated_feature_align_backward(features, boxes, grad, **settings)
        return output, grad

    torch.testing.assert_close(call(mmcv_ops), call(compiled), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('kind', [0, 1], ids=['collect', 'distribute'])
@pytest.mark.parametrize('side', [5, 11], ids=['small', 'large'])
def test_psa_mask(compiled, device, side, kind):
    masks = random(2, side * 7, 6, 4, device=device)
    settings = {
        **{'psa_type': kind, 'num_': 2, 'h_feature': 6, 'w_feature': 4},
        **{'h_mask': side, 'w_mask': 7},
        **{'half_h_mask': (side - 1) // 2, 'half_w_mask': 3},
    }

    def call(ops):
        output, grad = masks.new_zeros(2, 24, 6, 4), torch.zeros_like(masks)
        ops.psamask_forward(masks, output, **settings)
        direction = random(*output.shape, seed=3, device=device)
        ops.psamask_backward(direction, grad, **settings)
        return output, grad

    assert_same_outputs(call, compiled)


def test_active_rotated_filter(compiled, device):
    filters = random(3, 2, 4, 3, 3, device=device)
    generator = torch.Generator().manual_seed(0)
    places = [torch.randperm(36, generator=generator) for _ in range(5)]
    indices = (torch.stack(places, 1) + 1).int().view(4, 3, 3, 5).to(device)

    def call(ops):
        output, grad = filters.new_zeros(15, 8, 3, 3), torch.zeros_like(filters)
        ops.active_rotated_filter_forward(filters, indices, output)
        ops.active_rotated_filter_backward(output, indices, grad)
        return output, grad

    assert_same_outputs(call, compiled)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no CUDA device')
@pytest.mark.parametrize('weighted', [False, True], ids=['plain', 'weighted'])
@pytest.mark.parametrize('kind', ['sigmoid', 'softmax'])
def test_focal_loss(compiled, kind, weighted):
    logits = random(50, 8, device='cuda') * 2
    target = torch.arange(50, device='cuda') % 8
    weight = random(8, seed=1, device='cuda').abs() if weighted else logits.new_empty(0)
    settings = {'gamma': 2.0, 'alpha': 0.25}

    def call(ops):
        grad = torch.zeros_like(logits)
        if kind == 'sigmoid':
            loss = torch.zeros_like(logits)
            tensors = logits, target, weight
            ops.sigmoid_focal_loss_forward(*tensors, loss, **settings)
            ops.sigmoid_focal_loss_backward(*tensors, grad, **settings)
            return loss, grad
        tensors = logits.softmax(1), target, weight
        loss, buffer = logits.new_zeros(50), logits.new_zeros(50)
        ops.softmax_focal_loss_forward(*tensors, loss, **settings)
        ops.softmax_focal_loss_backward(*tensors, buffer, grad, **settings)
        return loss, buffer, grad

    assert_same_outputs(call, compiled)
