"""Group the parameters of a model, and read the settings of the groups."""

from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

from mmengine.config import Config
from mmengine.registry import init_default_scope

import mmattn.models  # noqa: F401  registers
from mmattn.analysis.flops import build
from mmattn.engine import LayerDecayOptimWrapperConstructor
from mmattn.models.backbones.base_backbone import BaseBackbone

CONFIGS = Path(__file__).parents[2] / 'configs'
LR = 0.5
DECAY = 0.25
RATE = 0.75
ADAMW = dict(type='AdamW', lr=LR, weight_decay=DECAY)
MODEL_CONFIGS = {
    'cls': 'classification/vit_t16_imhsa_300e_in1k',
    'cls-448': 'classification/vit_s16_mhsa_448_30e_in1k',
    'cls-ivit': 'classification/ivit_t_300e_in1k',
    'det': 'mask_rcnn/ivit_t_3x_coco',
    'seg': 'upernet/ivit_t_160k_ade20k',
}


def model_of(name: str) -> nn.Module:
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        return build(cfg)


def group(model: nn.Module, optimizer=ADAMW, **paramwise_cfg):
    constructor = LayerDecayOptimWrapperConstructor(
        dict(optimizer=dict(optimizer)), paramwise_cfg
    )
    return constructor(model)


def settings(model: nn.Module, wrapper) -> dict[str, tuple[float, float]]:
    """(lr, weight decay) by name; each trainable parameter is there exactly once."""
    names = {id(param): name for name, param in model.named_parameters()}
    grouped = [
        (names[id(param)], (group['lr'], group['weight_decay']))
        for group in wrapper.optimizer.param_groups
        for param in group['params']
    ]
    assert len(grouped) == len(dict(grouped))
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert set(dict(grouped)) == trainable
    return dict(grouped)


class Staged(BaseBackbone):
    """Every kind of part that a stage may have."""

    def __init__(self):
        super().__init__(None)
        self.stem = nn.Linear(2, 2)
        self.down = nn.Linear(2, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.end = nn.Linear(2, 2)
        self.single = nn.Linear(2, 2)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
        self.conv_offset = nn.Sequential(nn.Conv2d(2, 2, 3), nn.GELU())
        self.rpe_table = nn.Parameter(torch.zeros(2, 3, 3))

    def stages(self):
        last = [
            self.single,
            self.relative_position_bias_table,
            self.conv_offset,
            self.rpe_table,
        ]
        return [[self.stem], [self.down, self.blocks, self.end], last]


PLAIN = dict(norm_decay_mult=0.5, bias_decay_mult=0.25, flat_decay_mult=2.0)
