"""Groups of parameters: learning rates by layer, and what has no weight decay."""

import copy
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import init_default_scope
from mmpretrain.engine.optimizers import LearningRateDecayOptimWrapperConstructor
from torch import nn

import mmattn.models  # noqa: F401  registers
from mmattn.analysis.flops import build
from mmattn.engine import LayerDecayOptimWrapperConstructor

CONFIGS = Path(__file__).parents[2] / 'configs'
LR, DECAY, RATE = 0.5, 0.25, 0.75
ADAMW = dict(type='AdamW', lr=LR, weight_decay=DECAY)
PLAIN = dict(norm_decay_mult=0.5, bias_decay_mult=0.25, flat_decay_mult=2.0)


def group(
    model: nn.Module,
    optimizer=ADAMW,
    constructor=LayerDecayOptimWrapperConstructor,
    **paramwise_cfg,
):
    return constructor(dict(optimizer=dict(optimizer)), paramwise_cfg)(model)


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


@pytest.mark.parametrize(
    'name', ['classification/ivit_t_300e_in1k', 'mask_rcnn/ivit_t_3x_coco']
)
def test_rates_fall_with_the_layers_of_the_backbone_alone(name):
    cfg = Config.fromfile(CONFIGS / f'{name}.py')
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = build(cfg)
    found = settings(model, group(model, layer_decay_rate=RATE))
    for parameter, (lr, _) in found.items():
        depth, num_layers = model.backbone.get_layer_depth(parameter, 'backbone.')
        steps = num_layers - 1 - depth
        assert lr == pytest.approx(LR * RATE**steps), parameter
        outside = not parameter.startswith('backbone.')
        assert (steps == 0) == (outside or 'out_norms' in parameter), parameter
    if hasattr(model, 'get_layer_depth'):  # mmpretrain's constructor takes classifiers
        theirs = LearningRateDecayOptimWrapperConstructor
        others = settings(model, group(model, ADAMW, theirs, layer_decay_rate=RATE))
        assert {name: lr for name, (lr, _) in others.items()} == pytest.approx(
            {name: lr for name, (lr, _) in found.items()}
        )


class Layered(nn.Module):
    """A backbone of a stem and two blocks, in 4 layers with what comes after it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.table = nn.Parameter(torch.zeros(9, 2))

    def get_layer_depth(self, param_name, prefix=''):
        name = param_name.removeprefix(prefix)
        return (int(name[7]) + 1 if name.startswith('blocks.') else 0), 4

    def no_weight_decay(self):
        return {'table'}


def test_the_innermost_backbone_has_the_say():
    class Outer(Layered):
        def __init__(self):
            super().__init__()
            self.inner = Layered()

        def get_layer_depth(self, param_name, prefix=''):
            return 0, 20

    model = nn.ModuleDict({'backbone': Outer()})
    found = settings(model, group(model, layer_decay_rate=RATE))
    assert found['backbone.inner.stem.weight'] == (pytest.approx(LR * RATE**3), DECAY)
    assert found['backbone.stem.weight'] == (pytest.approx(LR * RATE**19), DECAY)


def test_a_compiled_backbone_has_the_groups_of_the_plain_one():
    """Keys with the names of the config find parameters below torch.compile's."""
    model = nn.ModuleDict({'backbone': Layered(), 'head': nn.Linear(2, 2)})
    keys = {'backbone.stem': dict(lr_mult=0.1, decay_mult=0.5)}
    options = dict(layer_decay_rate=RATE, custom_keys=keys)
    expected = settings(model, group(model, **options))
    for name, rate, decay in (
        ('backbone.stem.bias', 0.1 * RATE**3, DECAY / 2),
        ('backbone.table', RATE**3, 0),
        ('backbone.blocks.1.weight', RATE, DECAY),
        ('head.weight', 1, DECAY),
    ):
        assert expected[name] == (pytest.approx(LR * rate), decay), name
    model['backbone'] = torch.compile(model['backbone'])  # and is never called
    found = settings(model, group(model, **options))
    assert found == {
        name.replace('backbone.', 'backbone._orig_mod.'): value
        for name, value in expected.items()
    }


@pytest.mark.parametrize('norm', [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.RMSNorm(4)])
def test_every_norm_has_the_weight_decay_of_norms(norm):
    found = settings(norm, group(norm, **PLAIN))
    assert found and set(found.values()) == {(LR, DECAY * PLAIN['norm_decay_mult'])}


def test_a_backbone_without_layers_has_the_global_rate_and_a_warning(logged):
    from mmdet.models import ResNet

    model = nn.ModuleDict({'backbone': ResNet(18)})
    found = settings(model, group(model, layer_decay_rate=RATE))
    assert set(found.values()) == {(LR, DECAY), (LR, 0)}
    assert 'get_layer_depth' in logged.text


def test_what_a_model_names_does_not_decay():
    import timm

    with torch.device('meta'):
        vit = timm.create_model('vit_tiny_patch16_224', num_classes=0)
    model = nn.ModuleDict({'timm': vit, 'keywords': Layered()})
    model['keywords'].no_weight_decay_keywords = lambda: {'s.1.'}
    found = settings(model, group(model))
    spared = 'timm.pos_embed', 'timm.cls_token', 'keywords.blocks.1.weight'
    for name in (*spared, 'timm.blocks.0.attn.qkv.weight', 'keywords.blocks.0.weight'):
        assert found[name] == (LR, 0 if name in spared else DECAY)


def test_settings_mean_what_they_do_in_mmengine():
    from mmdet.models import ResNet

    custom_keys = {
        'conv1': dict(decay_mult=0.0),
        'layer1.0.conv1': dict(lr_mult=2.0, decay_mult=0.5),
        'bn': dict(lr_mult=0.1, betas=(0.8, 0.9)),
        '.extra': dict(decay_mult=3.0),
        'absent': dict(lr_mult=0.0),
    }
    model = ResNet(18)
    model.extra = nn.Parameter(torch.zeros(3, 3))
    cfg = PLAIN | dict(custom_keys=custom_keys)
    theirs = group(model, ADAMW, DefaultOptimWrapperConstructor, **copy.deepcopy(cfg))
    ours = group(model, **cfg)
    assert settings(model, ours) == settings(model, theirs)
    assert len(ours.optimizer.param_groups) < 10
    extras = [
        {id(p): g['betas'] for g in wrapper.optimizer.param_groups for p in g['params']}
        for wrapper in (ours, theirs)
    ]
    assert extras[0] == extras[1]


def test_groups_are_few_named_and_logged_once(logged):
    model = nn.ModuleDict({'backbone': Layered(), 'head': nn.Linear(2, 2)})
    groups = group(model, layer_decay_rate=RATE).optimizer.param_groups
    names = [group['name'] for group in groups]
    layers = 'head', 'layer_2', 'layer_1', 'layer_0'
    kinds = 'decay', 'no_decay'
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


def test_a_shared_parameter_is_in_one_group_and_a_frozen_one_in_none():
    model = nn.ModuleDict({'a': nn.Linear(3, 3), 'b': nn.Linear(3, 3)})
    model['b'].weight = model['a'].weight
    model['b'].bias.requires_grad_(False)
    assert len(settings(model, group(model))) == 2


@pytest.mark.parametrize(
    'optimizer, paramwise_cfg, message',
    [
        (ADAMW, dict(layer_decay=0.9), r"\['layer_decay'\]"),
        (ADAMW, dict(layer_decay_rate=0.0), r'got 0\.0'),
        (ADAMW, dict(layer_decay_rate=1.5), r'got 1\.5'),
        (dict(type='AdamW', lr=0.1), {}, 'weight_decay'),
        (dict(type='AdamW', weight_decay=0.1), {}, 'lr'),
    ],
    ids=['unknown', 'zero', 'above-one', 'no-decay', 'no-lr'],
)
def test_wrong_settings(optimizer, paramwise_cfg, message):
    with pytest.raises(ValueError, match=message):
        group(nn.Linear(2, 2), optimizer, **paramwise_cfg)
