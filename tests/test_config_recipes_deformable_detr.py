"""Configs of Deformable DETR have the networks, schedule and data of its authors.

Settings and sizes are those of the main script and the README of
https://github.com/fundamentalvision/Deformable-DETR; sizes are counted with the 80
classes of the configs instead of 91.
"""

import re
from pathlib import Path

import pytest
import torch

mm = pytest.importorskip('mmengine')
for name in ('mmdet', 'mmseg', 'mmpretrain'):
    pytest.importorskip(name)

import generate_model_zoo as model_zoo  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402
from torch import nn  # noqa: E402
from torchvision.models import resnet50  # noqa: E402

from mmattn.analysis.flops import build  # noqa: E402

ROOT = Path(__file__).parents[1]

NAMES = sorted(
    path.stem for path in (ROOT / 'configs/deformable_detr').glob('*_50e_coco.py')
)
ENTRIES = {
    model['Name']: model['Metadata']
    for model in model_zoo.read_models(ROOT / 'configs/deformable_detr/metafile.yml')
}
BACKBONES = ('r50', 'ivit_t', 'hylisanet_s', 'hmait_t', 'pvtv2_b2', 'dat_t', 'datpp_t')
DECODERS = {
    '': dict(with_box_refine=False, as_two_stage=False),
    '_refine': dict(with_box_refine=True, as_two_stage=False),
    '_two_stage': dict(with_box_refine=True, as_two_stage=True),
}
SINGLE_SCALE = ('r50_single_scale_50e_coco', 'r50_single_scale_dc5_50e_coco')
# Parameters with the affine maps of batch norms left out: there they are constants.
PARAMETERS = {
    'r50_single_scale_50e_coco': 34_063_766,
    'r50_single_scale_dc5_50e_coco': 34_063_766,
    'r50_50e_coco': 40_066_838,
    'r50_refine_50e_coco': 40_832_698,
    'r50_two_stage_50e_coco': 41_161_740,
}


def load(name: str) -> Config:
    return model_zoo.load(ROOT / f'configs/deformable_detr/{name}.py')


def test_each_backbone_has_each_variant():
    names = {f'{backbone}{v}_50e_coco' for backbone in BACKBONES for v in DECODERS}
    assert set(NAMES) == names | set(SINGLE_SCALE)


def test_resnets_have_the_authors_parameters():
    backbone = build(load('r50_50e_coco')).backbone
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    affine = sum(p.numel() for norm in norms for p in norm.parameters())
    # That the configs have what the metafile says, `test_configs.py` finds.
    counted = {name: ENTRIES[name]['Parameters'] - affine for name in PARAMETERS}
    assert counted == PARAMETERS


@pytest.mark.parametrize('variant', DECODERS)
@pytest.mark.parametrize('backbone', BACKBONES)
def test_variants_differ_in_the_decoder_and_in_the_maps_alone(backbone, variant):
    model = load(f'{backbone}{variant}_50e_coco').model.to_dict()
    base = load('r50_50e_coco').model.to_dict()
    assert len(model['neck']['in_channels']) == 3 < model['neck']['num_outs'] == 4
    assert tuple(model['backbone']['out_indices']) == (1, 2, 3)
    for settings in (model, base):
        del settings['backbone'], settings['neck']['in_channels']
    base['decoder'] |= DECODERS[variant]
    assert model == base


@pytest.mark.parametrize('name', NAMES)
def test_networks_are_the_authors(name):
    model = load(name).model
    levels = 1 if name in SINGLE_SCALE else 4
    for part in (model.encoder, model.decoder):
        assert (part.embed_dims, part.num_layers, part.num_heads) == (256, 6, 8)
        assert (part.num_levels, part.num_points) == (levels, 4)
        assert (part.feedforward_channels, part.dropout) == (1024, 0.1)
    assert model.decoder.num_queries == 300
    neck = model.neck
    assert (neck.num_outs, neck.kernel_size, neck.act_cfg) == (levels, 1, None)
    assert neck.norm_cfg == dict(type='GN', num_groups=32)
    assert model.data_preprocessor.pad_size_divisor == 1


def test_losses_match_with_the_authors_weights():
    model = load('r50_50e_coco').model
    head = model.bbox_head
    losses = [head.loss_cls, head.loss_bbox, head.loss_iou]
    costs = model.train_cfg.assigner.match_costs
    assert [loss.loss_weight for loss in losses] == [2, 5, 2]
    assert [cost.weight for cost in costs] == [2, 5, 2]
    for focal in (head.loss_cls, costs[0]):
        assert (focal.gamma, focal.alpha) == (2, 0.25)
    assert costs[1].box_format == 'xywh'
    assert costs[2].iou_mode == 'giou'
    assert (head.num_classes, head.sync_cls_avg_factor) == (80, True)
    assert model.test_cfg.max_per_img == 100


def test_optimizer_has_the_authors_groups():
    """Backbone, sampling offsets and reference points learn at a tenth of the rate."""
    for name in ('r50_50e_coco', 'datpp_t_two_stage_50e_coco'):
        cfg = load(name)
        init_default_scope(cfg.default_scope)
        model = build(cfg)
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
        groups = {
            id(parameter): (group['lr'], group['weight_decay'])
            for group in wrapper.optimizer.param_groups
            for parameter in group['params']
        }
        slow = re.compile(
            r'^backbone\.|\.sampling_offsets\.|^decoder\.reference_points\.'
        )
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                lr = 2e-5 if slow.search(key) else 2e-4
                assert groups[id(parameter)] == (pytest.approx(lr), 1e-4), key


@pytest.mark.parametrize('name', NAMES)
def test_schedule_is_the_authors(name):
    cfg = load(name)
    (schedule,) = cfg.param_scheduler
    assert (schedule.type, schedule.by_epoch) == ('MultiStepLR', True)
    assert (schedule.milestones, schedule.gamma) == ([40], 0.1)
    assert (schedule.begin, schedule.end) == (0, cfg.train_cfg.max_epochs) == (0, 50)
    assert cfg.optim_wrapper.clip_grad == dict(max_norm=0.1, norm_type=2)


@pytest.mark.parametrize('name', NAMES)
def test_images_are_scaled_and_cropped_as_the_authors_do(name):
    cfg = load(name)
    dataset = cfg.train_dataloader.dataset
    assert (
        not dataset.filter_cfg.filter_empty_gt and 'min_size' not in dataset.filter_cfg
    )
    flip, choice = dataset.pipeline[2:4]
    assert (flip.type, flip.prob, choice.type) == ('RandomFlip', 0.5, 'RandomChoice')
    (whole,), (shrunk, crop, cropped) = choice.transforms
    assert 'prob' not in choice  # each half of the time
    scales = [(side, 1333) for side in range(480, 801, 32)]
    assert whole.scales == cropped.scales == scales
    assert [short for short, _ in shrunk.scales] == [400, 500, 600]
    # Long sides of the middle step are free; COCO's are below 7 times the short ones.
    assert all(long >= 7 * short for short, long in shrunk.scales)
    assert (crop.crop_type, crop.crop_size) == ('absolute_range', (384, 600))
    assert crop.allow_negative_crop
    (resize,) = (s for s in cfg.test_pipeline if s.type == 'Resize')
    assert (resize.scale, resize.keep_ratio) == ((1333, 800), True)


@pytest.mark.parametrize('name', ['r50_50e_coco', 'r50_single_scale_dc5_50e_coco'])
def test_stem_first_stage_and_norms_of_resnets_are_frozen(name):
    backbone = build(load(name)).backbone
    backbone.train()
    for key, parameter in backbone.named_parameters():
        frozen = re.match(r'conv1|layer1|.*bn\d|.*downsample\.1', key)
        assert parameter.requires_grad == (not frozen), key
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert not any(norm.training for norm in norms)


@pytest.mark.parametrize('name', SINGLE_SCALE)
def test_last_stage_of_a_single_scale_is_dilated_as_torchvisions(name):
    """As the authors' is: but for the first block, where mmdet's would be."""
    dilation = [False, False, 'dc5' in name]
    with torch.device('meta'):
        expected = resnet50(replace_stride_with_dilation=dilation)
    backbone = build(load(name)).backbone
    assert backbone.out_indices == (3,)
    for stage in range(1, 5):
        ours, theirs = (getattr(m, f'layer{stage}') for m in (backbone, expected))
        for block, other in zip(ours, theirs, strict=True):
            for conv in ('conv1', 'conv2', 'conv3'):
                for setting in ('stride', 'dilation', 'padding'):
                    ours_is = getattr(getattr(block, conv), setting)
                    assert ours_is == getattr(getattr(other, conv), setting)
