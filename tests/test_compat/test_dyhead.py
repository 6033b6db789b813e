"""mmdet's DyHead and GLIP's head give the deformable convolution too large maps.

They use the offsets of a level on the next, smaller one. Their models were trained with
what mmcv reads then, so the modules must compute it here, too.
"""

import pytest
import torch
from deform_conv_loops import loop_deform_conv
from torch import nn

from mmattn.compat import activate

activate()
pytest.importorskip('mmdet')

from mmcv.ops import modulated_deform_conv  # noqa: E402
from mmdet.models.dense_heads.atss_vlfusion_head import (  # noqa: E402
    Conv3x3Norm,
    DyConv,
)
from mmdet.models.necks import DyHead  # noqa: E402

pytestmark = pytest.mark.usefixtures('served_ops')
C = 16
SIZES = [(7, 5), (4, 3), (2, 2)]


def dyhead(std):
    """One block, whose offsets are zero at first, as in mmdet, or as large as `std`."""
    module = DyHead(C, C, num_blocks=1)
    layer = module.dyhead_blocks[0].spatial_conv_offset
    nn.init.normal_(layer.weight, std=std)
    return module, lambda maps: module(maps)


def glip(std):
    """One stage of the tower of `ATSSVLFusionHead`."""

    def convolution(inputs, outputs, stride):
        return Conv3x3Norm(inputs, outputs, stride, use_dcn=True, norm_type=['gn', 16])

    module = DyConv(convolution, C, C, use_dyrelu=True, use_dcn=True)
    nn.init.normal_(module.offset.weight, std=std)
    nn.init.zeros_(module.offset.bias)
    return module, lambda maps: module({'visual': maps, 'lang': None})['visual']


def loops(x, offset, mask, weight, bias, stride, padding, dilation, *groups):
    geometry = dict(stride=stride, padding=padding, dilation=dilation)
    return loop_deform_conv(x, offset, weight, mask, bias, **geometry)


@pytest.mark.parametrize('std', [0.0, 0.1], ids=['zero-offsets', 'offsets'])
@pytest.mark.parametrize('build', [dyhead, glip])
def test_against_loops(monkeypatch, build, std):
    torch.manual_seed(0)
    module, call = build(std)
    for norm in (m for m in module.double().modules() if isinstance(m, nn.GroupNorm)):
        nn.init.normal_(norm.bias)  # with means of zero, ReLU is asked at its kink
    maps = [
        torch.randn(2, C, *size, dtype=torch.float64, requires_grad=True)
        for size in SIZES
    ]
    leaves = [*maps, *module.parameters()]
    directions = [torch.randn_like(x) for x in maps]
    results = []
    for function in (None, loops):
        if function is not None:
            name = 'modulated_deform_conv2d'
            monkeypatch.setattr(modulated_deform_conv, name, function)
        outs = call(maps)
        assert [tuple(out.shape[2:]) for out in outs] == SIZES
        results.append((outs, torch.autograd.grad(outs, leaves, directions)))
    torch.testing.assert_close(*results)
