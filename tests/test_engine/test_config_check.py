"""A wrong name or number in a model's config is named before training."""

import pytest
import torch
from torch import nn

pytest.importorskip('mmdet')
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope, Registry
from tiny_run import make_runner

from mmattn.engine.config_check import check_channels, check_save_best, check_scopes
from mmattn.engine.data.checked_dataset import DataError
from mmattn.models import IViT
from mmattn.registry import HOOKS, OPTIM_WRAPPER_CONSTRUCTORS
from mmattn.registry import MODELS as OURS

CHANNELS = [32, 64, 160, 256]
IVIT = dict(type='mmattn.IViT', arch='nano')
FPN = dict(type='mmdet.FPN', in_channels=CHANNELS, out_channels=8, num_outs=5)


@pytest.fixture
def said(monkeypatch):
    """Collect what the registries log."""
    messages = []
    monkeypatch.setattr(
        'mmattn.registry.print_log', lambda text, **_: messages.append(text)
    )
    return messages


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmattn', 'mmengine'])
@pytest.mark.parametrize(
    ('name', 'meant'),
    [
        ('IVit', 'IViT'),
        ('ivit', 'IViT'),
        ('PVTV2', 'PVTv2'),
        ('DeformableDetr', 'DeformableDETR'),
    ],
)
def test_a_misspelled_class_is_guessed(said, scope, name, meant):
    with (
        DefaultScope.overwrite_default_scope(scope),
        pytest.raises(KeyError, match=f'mmattn.{name} is not in the'),
    ):
        MODELS.build(dict(type=f'mmattn.{name}'))
    assert f"did you mean 'mmattn.{meant}'?" in said[0]


@pytest.mark.parametrize('registry', [MODELS, OURS])
@pytest.mark.parametrize('name', ['IVit', 'Tpyo'])
def test_a_registry_can_be_asked_for_a_misspelled_class(said, registry, name):
    assert f'mmattn.{name}' not in registry
    assert 'mmattn.IViT' in registry
    assert any("did you mean 'mmattn.IViT'?" in text for text in said) == (
        name == 'IVit'
    )


@pytest.mark.parametrize(
    ('registry', 'name', 'meant'),
    [
        (HOOKS, 'CheckpointHok', 'CheckpointHook'),
        (
            OPTIM_WRAPPER_CONSTRUCTORS,
            'LayerDecayOptimConstructor',
            'LayerDecayOptimWrapperConstructor',
        ),
    ],
)
def test_other_registries_guess_too(said, registry, name, meant):
    assert registry.get(name) is None
    assert len(said) == 1 and f"did you mean 'mmattn.{meant}'?" in said[0]


@pytest.mark.parametrize('name', ['NoSuchThing', 'mmattn.NoSuchThing'])
def test_what_resembles_nothing_is_not_guessed(said, name):
    assert OURS.get(name) is None
    with pytest.raises(KeyError, match='is not in the'):
        MODELS.build(dict(type=name))
    assert not said


@pytest.mark.parametrize('name', ['IViT', 'mmattn.IViT', 'ExponentialMovingAverage'])
def test_what_is_right_is_found(name):
    assert OURS.get(name) is not None


def test_names_of_modules_are_found():
    assert MODELS.get('mmattn.models.IViT') is IViT
    assert MODELS.get('torch.nn.Linear') is nn.Linear


@pytest.mark.parametrize('scope', ['mmatn', 'mmattnn', 'MMAttn', 'mmdett', 'mmseq'])
def test_a_misspelled_scope_is_guessed(tmp_path, scope):
    model = dict(type='Tiny', backbone=[IVIT, dict(type=f'{scope}.IViT')])
    with pytest.raises(ValueError, match=r'model.backbone.1.type is .*did you mean'):
        make_runner(tmp_path, model=model)


@pytest.mark.parametrize(
    'name',
    [
        'mmattn.IViT',
        'mmpose.Net',
        'torch.nn.Linear',
        'IViT',
        'mmaction.I3D',
        'mmdet3d.X',
    ],
)
def test_other_scopes_are_nobodys_misspelling(name):
    check_scopes(dict(backbone=dict(type=name)), 'model')


def test_a_registered_scope_is_known():
    Registry('model', parent=MODELS, scope='mmatt', locations=[])
    try:
        check_scopes(dict(type='mmatt.Net'), 'model')
    finally:
        del MODELS.children['mmatt']


class Detector(BaseModel):
    def __init__(self, backbone, neck):
        super().__init__()
        self.backbone, self.neck = MODELS.build(backbone), MODELS.build(neck)

    def forward(self, inputs, mode='tensor'):
        return self.neck(self.backbone(inputs))


Detector.__module__ = 'mmdet.models.detectors.mine'


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(MODELS.module_dict, 'Detector', Detector)


MAPS = {None: CHANNELS, (1, 3): [64, 256]}
WRONG = {
    'other': lambda channels: [*channels[:-1], channels[-1] + 1],
    'too-many': lambda channels: [*channels, channels[-1]],
    'too-few': lambda channels: channels[:-1],
}


@pytest.mark.parametrize('wrong', [None, *WRONG])
@pytest.mark.parametrize('neck', ['FPN', 'ChannelMapper', 'CSPNeXtPAFPN'])
@pytest.mark.parametrize('out_indices', MAPS)
def test_a_neck_must_fit_its_backbone(tmp_path, out_indices, neck, wrong):
    channels = MAPS[out_indices]
    given = channels if wrong is None else WRONG[wrong](channels)
    backbone = IVIT if out_indices is None else dict(IVIT, out_indices=out_indices)
    neck = dict(type=f'mmdet.{neck}', in_channels=given, out_channels=8)
    if neck['type'] == 'mmdet.FPN':
        neck['num_outs'] = 5
    model = dict(type='Detector', backbone=backbone, neck=neck)
    if wrong is None:
        make_runner(tmp_path, model=model)
        return
    with pytest.raises(ValueError, match='model.neck.in_channels') as error:
        make_runner(tmp_path, model=model)
    message = str(error.value)
    assert f'in_channels is {given}' in message
    assert f'{len(channels)} maps of {channels} channels' in message


@pytest.mark.parametrize(
    ('levels', 'in_channels'),
    [
        (dict(start_level=1, num_outs=3), [0, *CHANNELS[1:]]),
        (dict(start_level=1, end_level=2, num_outs=2), [1, *CHANNELS[1:3], 1]),
    ],
)
def test_levels_that_are_left_out_may_have_any_channels(levels, in_channels):
    neck = FPN | dict(in_channels=in_channels) | levels
    model = Detector(IVIT, neck)
    check_channels(dict(neck=neck), model)
    assert len(model(torch.zeros(1, 3, 64, 64))) == levels['num_outs']


def test_other_necks_are_left_alone():
    neck = dict(FPN, in_channels=CHANNELS[:2])
    model = Detector(IVIT, neck | dict(num_outs=2))
    model.neck = type('RFP', (type(model.neck),), {})(CHANNELS[:2], 8, 2)
    check_channels(dict(neck=neck), model)


def test_models_of_others_are_left_alone(monkeypatch):
    wrong = dict(FPN, in_channels=CHANNELS[:3], num_outs=3)
    cfg = dict(type='Detector', backbone=IVIT, neck=wrong)
    model = Detector(IVIT, wrong)
    with pytest.raises(ValueError, match='in_channels'):
        check_channels(cfg, model)
    monkeypatch.setattr(Detector, '__module__', 'theirs')
    check_channels(cfg, model)


def test_backbones_of_others_are_left_alone():
    wrong = dict(FPN, in_channels=CHANNELS[:3], num_outs=3)
    resnet = dict(type='mmdet.ResNet', depth=18)
    check_channels(dict(neck=wrong), Detector(resnet, wrong))


@pytest.mark.parametrize(
    ('evaluator', 'metric'),
    [
        (dict(type='mmdet.CocoMetric', metric='bbox'), 'bbox'),
        ([dict(type='mmdet.CocoMetric', metric=['bbox', 'segm'])], 'segm'),
    ],
)
def test_auto_is_refused_with_metrics_of_classes(tmp_path, evaluator, metric):
    """Before any data is read, and only where a class would choose."""
    checkpoint = dict(type='CheckpointHook', interval=1, by_epoch=False)

    def train(save_best, classwise=True):
        first = evaluator[0] if isinstance(evaluator, list) else evaluator
        first['classwise'] = classwise
        make_runner(
            tmp_path,
            val=True,
            val_evaluator=evaluator,
            train_dataloader=dict(dataset=dict(type='NeverRead'), batch_size=1),
            default_hooks=dict(checkpoint=checkpoint | dict(save_best=save_best)),
        ).train()

    with pytest.raises(ValueError, match=f"'auto', .* such as coco/{metric}_mAP"):
        train('auto')
    for options in (['auto', False], ['coco/bbox_mAP'], [None]):
        with pytest.raises(DataError, match='NeverRead'):
            train(*options)


def test_panoptic_metrics_keep_classes_to_themselves():
    metric = dict(type='mmdet.CocoPanopticMetric', classwise=True)
    check_save_best('auto', metric)
    with pytest.raises(ValueError, match='auto'):
        check_save_best(['mIoU', 'auto'], [metric, dict(type='X', classwise=True)])
