"""torchvision's deformable convolution and RoIAlign after `mmattn.accelerate`."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torchvision.ops import DeformConv2d, MultiScaleRoIAlign, RoIAlign

import mmattn
from mmattn.integrations import accelerated


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Pooling is replaced, whatever is built; its operator takes what there is."""
    monkeypatch.setattr(accelerated, 'extension', SimpleNamespace(UNAVAILABLE=None))


def agree(module, inputs, differentiable):
    """Compare outputs and gradients before and after `accelerate`."""
    ours = copy.deepcopy(module)
    report = mmattn.accelerate(ours)
    assert list(report.replaced) == [''], report
    results = []
    for each in (module, ours):
        out = each(*inputs)
        slope = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        tensors = [*each.parameters(), *differentiable]
        grads = torch.autograd.grad((out * slope).sum(), tensors)
        results.append([out, *grads])
    tolerance = 1e-5 if results[0][0].dtype == torch.float32 else 1e-12
    for theirs, found in zip(*results, strict=True):
        assert found.shape == theirs.shape and found.dtype == theirs.dtype
        assert (found - theirs).abs().max() <= tolerance * theirs.abs().max()
    assert mmattn.restore(ours) == 1 and type(ours) is type(module)


def random(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize(
    'settings, offset_groups, masked',
    [
        (dict(kernel_size=3, padding=1), 1, False),
        (dict(kernel_size=3, padding=1, groups=2, bias=False), 2, True),
        (dict(kernel_size=(1, 3), stride=(2, 1), padding=(0, 2)), 4, True),
        (dict(kernel_size=(3, 2), dilation=(2, 3), stride=2), 1, True),
    ],
)
def test_deformable_convolution(settings, offset_groups, masked, dtype):
    torch.manual_seed(0)
    module = DeformConv2d(8, 6, **settings).to(dtype)
    x = random(2, 8, 9, 11, dtype=dtype)
    kernel = x.new_zeros(1, 1, *module.kernel_size)
    how = module.stride, module.padding, module.dilation
    plain = nn.functional.conv2d(x[:, :1], kernel, None, *how)
    taps = offset_groups * module.weight[0, 0].numel()
    inputs = [x, random(2, 2 * taps, *plain.shape[2:], dtype=dtype)]
    if masked:
        inputs.append(random(2, taps, *plain.shape[2:], dtype=dtype))
    agree(module, inputs, inputs)


BOXES = torch.tensor(
    [
        [0, 0.0, 0.0, 12.0, 15.0],
        [1, 3.3, 2.1, 4.0, 2.4],  # less than a pixel
        [1, -9.0, -7.5, 5.5, 44.0],  # out of the map, on both sides
        [0, 21.0, 17.0, 23.9, 30.0],  # beyond its last pixel
    ],
    dtype=torch.float64,
)


@pytest.mark.parametrize('aligned', [False, True])
@pytest.mark.parametrize('channels', [3, 64])
def test_roi_align(channels, aligned):
    torch.manual_seed(0)
    module = RoIAlign((3, 2), 0.5, 2, aligned)
    x = random(2, channels, 11, 12)
    agree(module, (x, BOXES), [x])
    agree(module, (x, [BOXES[:3, 1:], BOXES[3:, 1:]]), [x])
    agree(RoIAlign(4, 1.0, 1), (x, BOXES), [x])


def test_boxes_get_no_gradient():
    module = RoIAlign(2, 1.0, 2)
    mmattn.accelerate(module)
    rois = BOXES.clone().requires_grad_()
    out = module(random(2, 4, 11, 12), rois)
    assert torch.autograd.grad(out.sum(), rois, allow_unused=True) == (None,)


def test_roi_align_of_a_pyramid():
    torch.manual_seed(0)
    module = MultiScaleRoIAlign(['0', '1', '2'], 5, 2, canonical_scale=40)
    maps = {str(i): random(2, 4, 32 >> i, 40 >> i) for i in range(3)}
    maps['unused'] = random(2, 4, 1, 1)
    sizes = 4.0 * 2 ** torch.arange(6, dtype=torch.float64)[:, None]
    corners = torch.rand(6, 2, dtype=torch.float64) * 20
    boxes = torch.cat([corners, corners + sizes * torch.tensor([1.0, 0.8])], 1)
    inputs = maps, [boxes[::2], boxes[1::2]], [(128, 150), (120, 160)]
    agree(module, inputs, [maps['0'], maps['1'], maps['2']])


def test_pooling_stays_without_the_compiled_operators(monkeypatch):
    missing = SimpleNamespace(UNAVAILABLE='not built')
    monkeypatch.setattr(accelerated, 'extension', missing)
    module = RoIAlign(2, 1.0, 2)
    report = mmattn.accelerate(module)
    assert not report.replaced and type(module) is RoIAlign
    assert 'without the compiled operators' in str(report)


def test_samples_that_depend_on_the_box_stay():
    every = MultiScaleRoIAlign(['0'], 7, 0)
    model = nn.ModuleDict(dict(one=RoIAlign(7, 1.0, -1), all=every))
    report = mmattn.accelerate(model)
    assert not report.replaced
    assert all('depends on the box' in why for why in report.kept.values())


def test_other_devices_keep_their_kernels():
    module = RoIAlign(2, 1.0, 2)
    mmattn.accelerate(module)
    x = torch.empty(1, 3, 4, 5, device='meta')
    rois = torch.empty(7, 5, device='meta')
    assert module(x, rois).shape == (7, 3, 2, 2)
