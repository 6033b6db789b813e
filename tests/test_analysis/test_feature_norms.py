"""Norms of features, against running the blocks one by one."""

import re

import pytest
import timm
import torch
from torch import nn

from mmattn.analysis import feature_norms
from mmattn.analysis.feature_norms import channels_last
from mmattn.models import IViT, ViT
from tools.benchmark.tolerances import assert_close


def norm(x):
    """Compute the norms of a map (B, H, W, C), written out."""
    return x[0].double().square().sum(-1).sqrt().float()


BACKBONES = {
    'pyramid': lambda: IViT('nano'),
    'plain': lambda: ViT(dict(embed_dims=32, depth=3, num_heads=2)),
}


@torch.no_grad()
@pytest.mark.parametrize('make', BACKBONES.values(), ids=BACKBONES)
def test_norms_are_those_of_the_blocks_one_by_one(make):
    torch.manual_seed(0)
    backbone, image = make().eval(), torch.randn(1, 3, 64, 96)
    x, expected = backbone.stem(image.permute(0, 2, 3, 1)), {}
    for name, module in backbone.named_modules():
        if name.endswith('.downsample'):
            x = module(x)
        elif re.search(r'(^|\.)blocks\.\d+$', name):
            x = module(x)
            expected[name] = norm(x)
    norms = feature_norms(backbone, image)
    assert list(norms) == list(expected)
    for name in expected:
        assert_close(name, expected[name], norms[name])


@pytest.mark.parametrize(
    'name, first, last',
    [
        ('resnet18', 'layer1.0', 'layer4.1'),
        ('vit_tiny_patch16_224', 'blocks.0', 'blocks.11'),
    ],
    ids=['maps', 'tokens'],
)
def test_other_backbones(name, first, last):
    """The norms of the last block equal the norms of the returned map."""
    torch.manual_seed(0)
    size = dict(img_size=(64, 96)) if 'vit' in name else {}
    backbone = timm.create_model(name, num_classes=0, **size).eval()
    image = torch.randn(1, 3, 64, 96)
    norms = feature_norms(backbone, image)
    assert list(norms)[0] == first and list(norms)[-1] == last
    with torch.no_grad():
        out = backbone.forward_intermediates(image, 1, intermediates_only=True)[0]
    assert_close('norms', norm(out.permute(0, 2, 3, 1)), norms[last])


def test_layout_is_seen_from_the_sides():
    x = torch.randn(1, 4, 6, 10)
    assert torch.equal(channels_last(x, (64, 96)), x)
    assert torch.equal(channels_last(x.permute(0, 3, 1, 2), (63, 95)), x)
    assert torch.equal(channels_last(x.flatten(1, 2), (64, 96)), x)
    assert channels_last(x, (96, 64)) is None
    assert channels_last(torch.randn(1, 10), (64, 96)) is None


def test_a_backbone_without_blocks_is_refused():
    with pytest.raises(ValueError, match='Conv2d has no blocks'):
        feature_norms(nn.Conv2d(3, 8, 3), torch.randn(1, 3, 8, 8))
