"""Groups of parameters: learning rates by layer, and what has no weight decay."""

import re

import pytest
import torch
from torch import nn

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

from mmpretrain.engine.optimizers import LearningRateDecayOptimWrapperConstructor
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
from mmattn.models.backbones.base_backbone import BaseBackbone
from mmattn.registry import MODELS

BACKBONES = sorted(
    (c for c in MODELS.module_dict.values() if issubclass(c, BaseBackbone)),
    key=lambda cls: cls.__name__,
)


# Steps below the full learning rate, and whether the parameter decays.
VIT_T = {
    'backbone.pos_embed': (13, False),
    'backbone.patch_embed.weight': (13, True),
    'backbone.patch_embed.bias': (13, False),
    'backbone.blocks.0.norm1.weight': (12, False),
    'backbone.blocks.0.attention.qkv.weight': (12, True),
    'backbone.blocks.0.attention.qkv.bias': (12, False),
    'backbone.blocks.0.attention.w1_q': (12, False),
    'backbone.blocks.3.attention.w2_k': (9, False),
    'backbone.blocks.3.attention.local.weight': (9, True),
    'backbone.blocks.3.attention.gate.0.weight': (9, True),
    'backbone.blocks.11.mlp.fc1.weight': (1, True),
    'backbone.out_norms.11.weight': (0, False),
    'head.fc.weight': (0, True),
    'head.fc.bias': (0, False),
}
# Its 18 blocks are layers 1 to 18; a stage's downsampling goes with its first block.
IVIT_T = {
    'backbone.downsamplings.0.conv.weight': (19, True),
    'backbone.downsamplings.0.norm.weight': (19, False),
    'backbone.blocks.0.0.mixer.pwconv1.weight': (18, True),
    'backbone.blocks.0.0.mixer.act.scale': (18, False),
    'backbone.blocks.0.2.norm2.weight': (16, False),
    'backbone.downsamplings.1.norm.weight': (15, False),
    'backbone.downsamplings.1.conv.weight': (15, True),
    'backbone.blocks.1.0.mixer.dwconv.weight': (15, True),
    'backbone.downsamplings.2.conv.bias': (12, False),
    'backbone.blocks.2.0.scale1': (12, False),
    'backbone.blocks.2.0.mixer.w1_k': (12, False),
    'backbone.blocks.2.8.mixer.w2_q': (4, False),
    'backbone.blocks.2.8.mixer.proj.weight': (4, True),
    'backbone.downsamplings.3.conv.weight': (3, True),
    'backbone.blocks.3.2.scale2': (1, False),
    'backbone.blocks.3.2.mlp.2.weight': (1, True),
}
DETECTOR = IVIT_T | {
    'backbone.out_norms.0.weight': (0, False),
    'neck.lateral_convs.0.conv.weight': (0, True),
    'neck.fpn_convs.3.conv.bias': (0, False),
    'rpn_head.rpn_cls.weight': (0, True),
    'roi_head.bbox_head.fc_cls.bias': (0, False),
    'roi_head.mask_head.upsample.weight': (0, True),
}
SEGMENTOR = IVIT_T | {
    'backbone.out_norms.3.weight': (0, False),
    'decode_head.bottleneck.conv.weight': (0, True),
    'decode_head.bottleneck.bn.weight': (0, False),
    'decode_head.conv_seg.bias': (0, False),
    'auxiliary_head.convs.0.conv.weight': (0, True),
}
CLASSIFIER = IVIT_T | {
    'neck.norm1.weight': (0, False),
    'neck.fc.weight': (0, True),
    'head.fc.bias': (0, False),
}
TABLE = [
    pytest.param(name, parameter, *expected, id=f'{name}-{parameter}')
    for name, table in [
        ('cls', VIT_T),
        ('det', DETECTOR),
        ('seg', SEGMENTOR),
        ('cls-ivit', CLASSIFIER),
    ]
    for parameter, expected in table.items()
]


@pytest.fixture(scope='module')
def grouped():
    """(lr, weight decay) by parameter of each model."""
    found = {}
    for name, config in MODEL_CONFIGS.items():
        model = model_of(config)
        found[name] = settings(model, group(model, layer_decay_rate=RATE))
    return found


@pytest.mark.parametrize('name, parameter, steps, decays', TABLE)
def test_table(grouped, name, parameter, steps, decays):
    lr, decay = grouped[name][parameter]
    assert lr == pytest.approx(LR * RATE**steps)
    assert decay == (DECAY if decays else 0)


@pytest.mark.parametrize('name', MODEL_CONFIGS)
def test_what_decays(grouped, name):
    """All matrices but tables and mixing weights, and nothing else."""
    model = model_of(MODEL_CONFIGS[name])
    for parameter, (_, decay) in grouped[name].items():
        exempt = re.search(r'\.(pos_embed|w[12]_[qk])$', parameter)
        matrix = model.get_parameter(parameter).ndim > 1
        assert decay == (DECAY if matrix and not exempt else 0), parameter


@pytest.mark.parametrize('name', MODEL_CONFIGS)
def test_all_outside_the_backbone_has_the_full_rate(grouped, name):
    for parameter, (lr, _) in grouped[name].items():
        outside = not parameter.startswith('backbone.')
        full = outside or parameter.startswith('backbone.out_norms')
        assert (lr == LR) == full, parameter


@pytest.mark.parametrize('cls', BACKBONES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize('out_indices', [-1, 0], ids=['whole', 'cut'])
def test_depth_grows_along_the_stages_of_every_backbone(cls, out_indices):
    with torch.device('meta'):
        model = cls(out_indices=out_indices)
    names = {id(param): name for name, param in model.named_parameters()}
    last, found = 0, set()
    for index, stage in enumerate(model.stages()):
        params = [
            param
            for part in stage
            for param in (part.parameters() if isinstance(part, nn.Module) else [part])
        ]
        depths = {model.get_layer_depth(names[id(param)])[0] for param in params}
        assert depths == set(range(min(depths), max(depths) + 1))
        assert min(depths) == (last + 1 if index else 0)
        last = max(depths)
        found |= depths
    num_layers = model.get_layer_depth('', 'backbone.')[1]
    assert found == set(range(num_layers - 1))
    assert model.get_layer_depth('head.fc.weight', 'backbone.')[0] == num_layers - 1


@pytest.mark.parametrize(
    'name, depth, decays',
    [
        ('stem.weight', 0, True),
        ('down.weight', 1, True),
        ('blocks.0.weight', 1, True),
        ('blocks.1.weight', 2, True),
        ('blocks.2.bias', 3, False),
        ('end.weight', 3, True),
        ('single.weight', 4, True),
        ('relative_position_bias_table', 4, False),
        ('rpe_table', 4, False),
        ('conv_offset.0.weight', 4, True),
    ],
)
def test_parts_of_a_stage(name, depth, decays):
    model = nn.ModuleDict({'backbone': Staged()})
    found = settings(model, group(model, layer_decay_rate=RATE))
    assert model['backbone'].get_layer_depth(name) == (depth, 6)
    assert found[f'backbone.{name}'] == (
        pytest.approx(LR * RATE ** (5 - depth)),
        DECAY if decays else 0,
    )


def test_the_innermost_backbone_has_the_say():
    class Outer(Staged):
        def __init__(self):
            super().__init__()
            self.inner = Staged()

        def get_layer_depth(self, param_name, prefix=''):
            return 0, 20

    model = nn.ModuleDict({'backbone': Outer()})
    found = settings(model, group(model, layer_decay_rate=RATE))
    assert found['backbone.inner.stem.weight'] == (pytest.approx(LR * RATE**5), DECAY)
    assert found['backbone.stem.weight'] == (pytest.approx(LR * RATE**19), DECAY)


def test_a_compiled_backbone_has_the_groups_of_the_plain_one():
    """Keys with the names of the config find parameters below torch.compile's."""
    model = nn.ModuleDict({'backbone': Staged(), 'head': nn.Linear(2, 2)})
    options = dict(
        layer_decay_rate=RATE, custom_keys={'backbone.stem': dict(lr_mult=0.1)}
    )
    expected = settings(model, group(model, **options))
    assert expected['backbone.stem.weight'][0] == pytest.approx(LR * 0.1 * RATE**5)
    model['backbone'] = torch.compile(model['backbone'])  # and is never called
    found = settings(model, group(model, **options))
    assert found == {
        name.replace('backbone.', 'backbone._orig_mod.'): value
        for name, value in expected.items()
    }


NORM_LAYERS = {
    'batch': lambda: nn.BatchNorm1d(4),
    'sync': lambda: nn.SyncBatchNorm(4),
    'instance': lambda: nn.InstanceNorm1d(4, affine=True),
    'group': lambda: nn.GroupNorm(2, 4),
    'layer': lambda: nn.LayerNorm(4),
    'rms': lambda: nn.RMSNorm(4),
    'layer of a map': lambda: nn.LayerNorm((4, 4)),
}


@pytest.mark.parametrize('make', NORM_LAYERS.values(), ids=NORM_LAYERS)
def test_every_norm_has_the_weight_decay_of_norms(make):
    model = make()
    found = settings(model, group(model, **PLAIN))
    assert found and set(found.values()) == {(LR, DECAY * PLAIN['norm_decay_mult'])}


def test_depths_are_those_of_mmpretrains_vit():
    from mmpretrain.models import VisionTransformer

    theirs = VisionTransformer(arch='deit-t', img_size=32, out_type='avg_featmap')
    ours = MODELS.build(dict(type='ViT', arch='tiny', attention='mhsa'))
    for our, their in {
        'pos_embed': 'pos_embed',
        'patch_embed.weight': 'patch_embed.projection.weight',
        'blocks.0.norm1.weight': 'layers.0.ln1.weight',
        'blocks.11.attention.qkv.weight': 'layers.11.attn.qkv.weight',
        'out_norms.11.weight': 'ln1.weight',
    }.items():
        assert ours.get_layer_depth(our) == theirs.get_layer_depth(their)


@pytest.mark.parametrize('name', ['cls', 'cls-ivit'])
def test_mmpretrains_constructor_gives_the_same_rates(grouped, name):
    model = model_of(MODEL_CONFIGS[name])
    theirs = LearningRateDecayOptimWrapperConstructor(
        dict(optimizer=dict(ADAMW)), dict(layer_decay_rate=RATE)
    )
    for parameter, (lr, _) in settings(model, theirs(model)).items():
        assert lr == pytest.approx(grouped[name][parameter][0]), parameter


def test_a_backbone_of_mmpretrain_in_a_detector():
    from mmpretrain.models import ConvNeXt

    backbone = ConvNeXt(arch='atto', out_indices=(0, 1, 2, 3))
    model = nn.ModuleDict({'backbone': backbone, 'head': nn.Linear(4, 4)})
    found = settings(model, group(model, layer_decay_rate=RATE))
    for name in backbone.state_dict():
        depth, num_layers = backbone.get_layer_depth(name, '')
        lr, _ = found[f'backbone.{name}']
        assert lr == pytest.approx(LR * RATE ** (num_layers - 1 - depth)), name
    assert found['head.weight'] == (LR, DECAY)


def test_a_backbone_without_layers_has_the_global_rate_and_a_warning(logged):
    from mmdet.models import ResNet

    model = nn.ModuleDict({'backbone': ResNet(18)})
    found = settings(model, group(model, layer_decay_rate=RATE))
    assert set(found.values()) == {(LR, DECAY), (LR, 0)}
    assert 'get_layer_depth' in logged.text
    assert found['backbone.bn1.weight'] == (LR, 0)


def test_what_a_timm_model_names_does_not_decay():
    import timm

    with torch.device('meta'):
        backbone = timm.create_model('vit_tiny_patch16_224', num_classes=0)
        model = nn.ModuleDict({'backbone': nn.ModuleDict({'timm_model': backbone})})
    found = settings(model, group(model))
    for name in ('pos_embed', 'cls_token'):
        assert found[f'backbone.timm_model.{name}'] == (LR, 0)
    assert found['backbone.timm_model.blocks.0.attn.qkv.weight'] == (LR, DECAY)


def test_timms_own_groups_spare_what_ours_names():
    from timm.optim import param_groups_weight_decay

    with torch.device('meta'):
        model = MODELS.build(dict(type='IViT', arch='nano'))
    groups = param_groups_weight_decay(
        model, DECAY, no_weight_decay_list=model.no_weight_decay()
    )
    spared = {id(p) for g in groups if g['weight_decay'] == 0 for p in g['params']}
    mixing = [p for n, p in model.named_parameters() if re.search('w[12]_[qk]', n)]
    assert mixing and {id(p) for p in mixing} <= spared
