"""A wrong name or number in a model's config is named before training."""

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS, Registry
from tiny_run import make_runner
from torch import nn

from mmattn.engine.config_check import check_channels, check_save_best, check_scopes
from mmattn.models import IViT
from mmattn.registry import HOOKS
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


@pytest.mark.parametrize(
    ('registry', 'name', 'meant'),
    [
        (MODELS, 'mmattn.ivit', 'IViT'),
        (OURS, 'mmattn.DeformableDetr', 'DeformableDETR'),
        (OURS, 'IVit', 'IViT'),
        (HOOKS, 'CheckpointHok', 'CheckpointHook'),
        (OURS, 'NoSuchThing', None),
        (OURS, 'mmattn.NoSuchThing', None),
    ],
)
def test_a_misspelled_class_is_guessed(said, registry, name, meant):
    assert registry.get(name) is None
    assert name not in registry
    with pytest.raises(KeyError, match='is not in the'):
        registry.build(dict(type=name))
    if meant is None:
        assert not said
    else:
        assert f"did you mean 'mmattn.{meant}'?" in said[0]


def test_what_is_right_is_found():
    assert OURS.get('ExponentialMovingAverage') is not None
    assert MODELS.get('mmattn.models.IViT') is IViT
    assert MODELS.get('torch.nn.Linear') is nn.Linear


@pytest.mark.parametrize('scope', ['mmatn', 'MMAttn', 'mmseq'])
def test_a_misspelled_scope_is_guessed(tmp_path, scope):
    model = dict(type='Tiny', backbone=[IVIT, dict(type=f'{scope}.IViT')])
    with pytest.raises(ValueError, match=r'model.backbone.1.type is .*did you mean'):
        make_runner(tmp_path, model=model)


@pytest.mark.parametrize(
    'name', ['mmattn.IViT', 'torch.nn.Linear', 'IViT', 'mmaction.I3D', 'mmdet3d.X']
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


@pytest.mark.parametrize(
    ('neck', 'out_indices', 'given'),
    [
        ('FPN', None, CHANNELS),
        ('FPN', None, [*CHANNELS[:-1], 257]),
        ('FPN', None, [*CHANNELS, 256]),
        ('FPN', None, CHANNELS[:-1]),
        ('ChannelMapper', (1, 3), [64, 256]),
        ('ChannelMapper', (1, 3), [64, 160]),
        ('CSPNeXtPAFPN', None, CHANNELS),
        ('CSPNeXtPAFPN', (1, 3), [64, 160]),
    ],
)
def test_a_neck_must_fit_its_backbone(tmp_path, neck, out_indices, given):
    backbone, channels = IVIT, CHANNELS
    if out_indices is not None:
        backbone = dict(IVIT, out_indices=out_indices)
        channels = [CHANNELS[i] for i in out_indices]
    neck = dict(type=f'mmdet.{neck}', in_channels=given, out_channels=8)
    if neck['type'] == 'mmdet.FPN':
        neck['num_outs'] = 5
    model = dict(type='Detector', backbone=backbone, neck=neck)
    if given == channels:
        make_runner(tmp_path, model=model)
        return
    message = (
        f'model.neck.in_channels is {given}, .* {len(channels)} maps of {channels}'
    )
    with pytest.raises(ValueError, match=message.replace('[', r'\[')):
        make_runner(tmp_path, model=model)


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


def test_models_and_backbones_of_others_are_left_alone(monkeypatch):
    wrong = dict(FPN, in_channels=CHANNELS[:3], num_outs=3)
    model = Detector(IVIT, wrong)
    with pytest.raises(ValueError, match='in_channels'):
        check_channels(dict(neck=wrong), model)
    check_channels(
        dict(neck=wrong), Detector(dict(type='mmdet.ResNet', depth=18), wrong)
    )
    monkeypatch.setattr(Detector, '__module__', 'theirs')
    check_channels(dict(neck=wrong), model)


BOXES = dict(type='mmdet.CocoMetric', metric='bbox', classwise=True)
PANOPTIC = dict(type='mmdet.CocoPanopticMetric', classwise=True)  # keeps them out


@pytest.mark.parametrize(
    ('save_best', 'evaluator', 'metric'),
    [
        ('auto', BOXES, 'bbox'),
        (['mIoU', 'auto'], [PANOPTIC, BOXES | dict(metric=['bbox', 'segm'])], 'segm'),
        ('auto', BOXES | dict(classwise=False), None),
        ('auto', PANOPTIC, None),
        ('coco/bbox_mAP', BOXES, None),
        (None, BOXES, None),
    ],
)
def test_auto_is_refused_with_metrics_of_classes(save_best, evaluator, metric):
    if metric is None:
        check_save_best(save_best, evaluator)
        return
    with pytest.raises(ValueError, match=f"'auto', .* such as coco/{metric}_mAP"):
        check_save_best(save_best, evaluator)


def test_a_run_refuses_auto_before_it_reads_data(tmp_path):
    runner = make_runner(
        tmp_path,
        val=True,
        val_evaluator=BOXES,
        train_dataloader=dict(dataset=dict(type='NeverRead'), batch_size=1),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', save_best='auto')),
    )
    with pytest.raises(ValueError, match="'auto'"):
        runner.train()
