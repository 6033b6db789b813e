"""A wrong name or number in a model's config is named before training."""

import pytest
from torch import nn

pytest.importorskip('mmdet')
from mmengine.registry import MODELS, DefaultScope, Registry
from tiny_run import make_runner

from mmattn.engine.config_check import check_scopes
from mmattn.models import IViT
from mmattn.registry import HOOKS, OPTIM_WRAPPER_CONSTRUCTORS
from mmattn.registry import MODELS as OURS

IVIT = dict(type='mmattn.IViT', arch='nano')


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
def test_a_misspelled_class_is_guessed(scope, name, meant):
    with (
        DefaultScope.overwrite_default_scope(scope),
        pytest.raises(KeyError, match=f"did you mean 'mmattn.{meant}'"),
    ):
        MODELS.build(dict(type=f'mmattn.{name}'))


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
def test_other_registries_guess_too(registry, name, meant):
    with pytest.raises(KeyError, match=f"did you mean 'mmattn.{meant}'"):
        registry.get(name)


@pytest.mark.parametrize('name', ['NoSuchThing', 'mmattn.NoSuchThing'])
def test_what_resembles_nothing_is_not_guessed(name):
    assert OURS.get(name) is None
    with pytest.raises(KeyError, match='is not in the'):
        MODELS.build(dict(type=name))


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
