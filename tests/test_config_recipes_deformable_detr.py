"""Configs of Deformable DETR have the networks and the rates of its authors.

Settings and sizes are those of the main script and the README of
https://github.com/fundamentalvision/Deformable-DETR; sizes are counted with the 80
classes of the configs instead of 91.
"""

import re

import pytest
import torch

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

from config_files import ROOT, load, model_zoo, parameter_groups  # noqa: E402
from torch import nn  # noqa: E402
from torchvision.models import resnet50  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402

NAMES = sorted(
    path.stem for path in (ROOT / 'configs/deformable_detr').glob('*_50e_coco.py')
)
ENTRIES = {
    model['Name']: model['Metadata']
    for model in model_zoo.read_models(ROOT / 'configs/deformable_detr/metafile.yml')
}
BACKBONES = ('r50', 'ivit_t', 'hylisanet_s', 'hmait_t', 'pvtv2_b2', 'dat_t', 'datpp_t')
VARIANTS = ('', '_refine', '_two_stage')
SINGLE_SCALE = ('r50_single_scale_50e_coco', 'r50_single_scale_dc5_50e_coco')
# The affine maps of batch norms are constants in the authors' code, and left out here.
PARAMETERS = {
    'r50_single_scale_50e_coco': 34_063_766,
    'r50_single_scale_dc5_50e_coco': 34_063_766,
    'r50_50e_coco': 40_066_838,
    'r50_refine_50e_coco': 40_832_698,
    'r50_two_stage_50e_coco': 41_161_740,
}


def test_each_backbone_has_each_variant():
    names = {f'{backbone}{v}_50e_coco' for backbone in BACKBONES for v in VARIANTS}
    assert set(NAMES) == names | set(SINGLE_SCALE)


def test_resnets_have_the_authors_parameters():
    backbone = build(load('deformable_detr/r50_50e_coco')).backbone
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    affine = sum(p.numel() for norm in norms for p in norm.parameters())
    # `test_configs.py` compares the metafile with the configs.
    counted = {name: ENTRIES[name]['Parameters'] - affine for name in PARAMETERS}
    assert counted == PARAMETERS


def test_optimizer_has_the_authors_groups():
    """Backbone, sampling offsets and reference points learn at a tenth of the rate."""
    for name in ('r50_50e_coco', 'datpp_t_two_stage_50e_coco'):
        cfg = load(f'deformable_detr/{name}')
        model, groups = parameter_groups(cfg)
        slow = re.compile(
            r'^backbone\.|\.sampling_offsets\.|^decoder\.reference_points\.'
        )
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                lr = 2e-5 if slow.search(key) else 2e-4
                group = groups[id(parameter)]
                assert group['lr'] == pytest.approx(lr), key
                assert group['weight_decay'] == 1e-4, key


@pytest.mark.parametrize('name', ['r50_50e_coco', 'r50_single_scale_dc5_50e_coco'])
def test_stem_first_stage_and_norms_of_resnets_are_frozen(name):
    backbone = build(load(f'deformable_detr/{name}')).backbone
    backbone.train()
    for key, parameter in backbone.named_parameters():
        frozen = re.match(r'conv1|layer1|.*bn\d|.*downsample\.1', key)
        assert parameter.requires_grad == (not frozen), key
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert not any(norm.training for norm in norms)


@pytest.mark.parametrize('name', SINGLE_SCALE)
def test_last_stage_of_a_single_scale_is_dilated_as_torchvisions(name):
    """The authors use torchvision's; mmdet's would also dilate the first block."""
    dilation = [False, False, 'dc5' in name]
    with torch.device('meta'):
        expected = resnet50(replace_stride_with_dilation=dilation)
    backbone = build(load(f'deformable_detr/{name}')).backbone
    assert backbone.out_indices == (3,)
    for stage in range(1, 5):
        ours, theirs = (getattr(m, f'layer{stage}') for m in (backbone, expected))
        for block, other in zip(ours, theirs, strict=True):
            for conv in ('conv1', 'conv2', 'conv3'):
                for setting in ('stride', 'dilation', 'padding'):
                    ours_is = getattr(getattr(block, conv), setting)
                    assert ours_is == getattr(getattr(other, conv), setting)
