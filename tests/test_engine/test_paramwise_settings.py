"""Settings of parameter groups mean what they do in mmengine."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

from mmengine.optim import DefaultOptimWrapperConstructor, build_optim_wrapper
from parameter_groups import (
    ADAMW,
    DECAY,
    LR,
    MODEL_CONFIGS,
    PLAIN,
    RATE,
    Staged,
    group,
    model_of,
    settings,
)

import mmattn.models  # noqa: F401  registers
from mmattn.registry import MODELS


@pytest.mark.parametrize(
    'paramwise_cfg',
    [
        PLAIN,
        PLAIN | dict(custom_keys={'layer': dict(lr_mult=0.1)}),
        PLAIN
        | dict(
            custom_keys={
                'conv1': dict(decay_mult=0.0),
                'layer1.0.conv1': dict(lr_mult=2.0, decay_mult=0.5),
                'bn': dict(lr_mult=0.1, betas=(0.8, 0.9)),
                '.extra': dict(decay_mult=3.0),
                'absent': dict(lr_mult=0.0),
            }
        ),
    ],
    ids=['multiples', 'one-key', 'keys'],
)
def test_settings_mean_what_they_do_in_mmengine(paramwise_cfg):
    from mmdet.models import ResNet

    model = ResNet(18)
    model.extra = nn.Parameter(torch.zeros(3, 3))
    theirs = DefaultOptimWrapperConstructor(
        dict(optimizer=dict(ADAMW)), copy.deepcopy(paramwise_cfg)
    )(model)
    ours = group(model, **paramwise_cfg)
    assert settings(model, ours) == settings(model, theirs)
    assert len(ours.optimizer.param_groups) < 10
    extras = [
        {id(p): g['betas'] for g in wrapper.optimizer.param_groups for p in g['params']}
        for wrapper in (ours, theirs)
    ]
    assert extras[0] == extras[1]


def test_a_custom_key_multiplies_the_rate_of_the_layer():
    model = nn.ModuleDict({'backbone': Staged()})
    keys = {'backbone': dict(lr_mult=0.1, decay_mult=0.5)}
    found = settings(model, group(model, layer_decay_rate=RATE, custom_keys=keys))
    assert found['backbone.stem.bias'] == (pytest.approx(LR * 0.1 * RATE**5), DECAY / 2)


def test_groups_are_few_named_and_logged_once(logged):
    model = model_of(MODEL_CONFIGS['cls'])
    groups = group(model, layer_decay_rate=RATE).optimizer.param_groups
    names = [group['name'] for group in groups]
    kinds = 'decay', 'no_decay'
    layers = ['head', *(f'layer_{i}' for i in reversed(range(13)))]
    assert names == [f'{layer}_{kind}' for layer in layers for kind in kinds]
    tables = [r.getMessage() for r in logged.records if 'Groups of' in r.getMessage()]
    assert len(tables) == 1
    rows = [line.split() for line in tables[0].splitlines()[2:]]
    assert [row[0] for row in rows] == names
    assert [int(row[1]) for row in rows] == [len(g['params']) for g in groups]
    total = sum(param.numel() for param in model.parameters())
    assert sum(int(row[2].replace(',', '')) for row in rows) == total
    assert rows[3][3:] == [f'{LR * RATE:.4g}', '0']

    names = [g['name'] for g in group(model).optimizer.param_groups]
    assert names == ['decay', 'no_decay']


def test_frozen_parameters_are_left_out():
    with torch.device('meta'):
        cfg = dict(type='IViT', arch='nano', frozen_stages=1)
        model = nn.ModuleDict({'backbone': MODELS.build(cfg)})
    found = settings(model, group(model, layer_decay_rate=RATE))
    assert not any(name.startswith('backbone.downsamplings.0') for name in found)
    assert min(lr for lr, _ in found.values()) == pytest.approx(LR * RATE**10)


def test_a_shared_parameter_is_in_one_group():
    model = nn.ModuleDict({'a': nn.Linear(3, 3), 'b': nn.Linear(3, 3)})
    model['b'].weight = model['a'].weight
    assert len(settings(model, group(model))) == 3


@pytest.mark.parametrize(
    'optimizer, paramwise_cfg, message',
    [
        (ADAMW, dict(layer_decay=0.9), r"\['layer_decay'\]"),
        (ADAMW, dict(decay_rate=0.9, num_layers=12), 'decay_rate'),
        (ADAMW, dict(layer_decay_rate=0.0), r'got 0\.0'),
        (ADAMW, dict(layer_decay_rate=1.5), r'got 1\.5'),
        (dict(type='AdamW', lr=0.1), {}, 'weight_decay'),
        (dict(type='AdamW', weight_decay=0.1), {}, 'lr'),
    ],
    ids=['unknown', 'of-mmdet', 'zero', 'above-one', 'no-decay', 'no-lr'],
)
def test_wrong_settings(optimizer, paramwise_cfg, message):
    with pytest.raises(ValueError, match=message):
        group(nn.Linear(2, 2), optimizer, **paramwise_cfg)


def test_it_is_found_by_its_name_in_a_config():
    model = nn.ModuleDict({'backbone': Staged()})
    cfg = dict(
        type='OptimWrapper',
        optimizer=dict(ADAMW),
        constructor='mmattn.LayerDecayOptimWrapperConstructor',
        paramwise_cfg=dict(layer_decay_rate=RATE),
    )
    assert settings(model, build_optim_wrapper(model, cfg)) == settings(
        model, group(model, layer_decay_rate=RATE)
    )
