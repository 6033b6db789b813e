"""Epsilons of every layer norm of every backbone, as the authors' codes have them.

ViT, MaiT and CaiT take timm's 1e-6, IViT and LiSANet CAFormer's, which is the same.
H-MaiT takes Swin's 1e-5, which DAT and DAT++ have as well. PVT and PVT v2 have both:
1e-6 in blocks and stages, 1e-5 for patches and reduced maps.
"""

import re

import pytest
import torch
from test_backbones import BACKBONES, all_indices, shallow_arch
from torch import nn

from mmattn.models import DAT, PVT, DATPlusPlus, HMaiT, LiSANet, MaskedCaiT, PVTv2

LARGE = DAT, DATPlusPlus, HMaiT
PVTS = PVT, PVTv2
ONE_STAGE = dict(embed_dims=(32,), depths=(1,), mlp_ratios=(2,), conv_stages=0)
CASES = {cls.__name__: (cls, {}) for cls in BACKBONES}
CASES |= {
    'PVT-token': (PVT, dict(out_type='cls_token')),
    'MaskedCaiT-token': (MaskedCaiT, dict(out_type='cls_token', out_indices=-1)),
    'PVTv2-li': (PVTv2, dict(arch=dict(shallow_arch(PVTv2), linear=True))),
    'LiSANet-local': (
        LiSANet,
        dict(arch=ONE_STAGE | dict(patterns=2), mixer='local', out_indices=0),
    ),
}


@pytest.mark.parametrize('cls, kwargs', CASES.values(), ids=CASES)
def test_epsilons(cls, kwargs):
    settings = dict(arch=shallow_arch(cls)) | kwargs
    if 'out_indices' not in kwargs:
        settings['out_indices'] = tuple(all_indices(cls))
    with torch.device('meta'):
        model = cls(**settings)
    norms = {
        name: module.eps
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
    }
    assert norms
    for name, eps in norms.items():
        large = cls in LARGE
        if cls in PVTS:
            large = bool(re.search(r'stem|downsample|attn', name))
        assert eps == (1e-5 if large else 1e-6), name
