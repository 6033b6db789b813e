"""A wrong name or number in a model's config is named before training."""

from types import SimpleNamespace

import pytest
from mmengine.registry import MODELS, Registry
from tiny_run import make_runner
from torch import nn

from mmattn.engine.config_check import check_save_best, check_scopes, check_topk
from mmattn.models import IViT
from mmattn.registry import HOOKS
from mmattn.registry import MODELS as OURS

IVIT = dict(type='mmattn.IViT', arch='nano')


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
        (OURS, 'IVit', 'IViT'),
        (HOOKS, 'CheckpointHok', 'CheckpointHook'),
        (OURS, 'NoSuchThing', None),
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


@pytest.mark.parametrize('topk', [(1, 5), 5, (1, 3), 1])
def test_an_accuracy_of_more_classes_than_there_are_is_refused(topk):
    model, metric = nn.Module(), dict(type='Accuracy', topk=topk)
    model.head = SimpleNamespace(num_classes=3)
    wrapped = nn.parallel.DataParallel(model)
    retrieval = dict(type='RetrievalRecall', topk=5)
    for evaluator in (metric, [retrieval, metric]):
        if topk in (1, (1, 3)):
            check_topk(evaluator, wrapped, 'val_evaluator')
            continue
        with pytest.raises(ValueError, match=r'val_evaluator.topk is .*5.* is 3: set'):
            check_topk(evaluator, wrapped, 'val_evaluator')


@pytest.mark.parametrize('mode', ['train', 'val', 'test'])
def test_a_run_refuses_it_before_it_reads_data(tmp_path, mode):
    metric = dict(type='mmpretrain.Accuracy', topk=(1, 5))
    never = dict(dataset=dict(type='NeverRead'), batch_size=1)
    evaluators = dict(val_evaluator=metric, test_evaluator=metric)
    loaders = dict(train_dataloader=never, val_dataloader=never, test_dataloader=never)
    runner = make_runner(tmp_path, val=True, test=True, **evaluators, **loaders)
    runner.model.head.num_classes = 3
    with pytest.raises(ValueError, match='topk is'):
        getattr(runner, mode)()
