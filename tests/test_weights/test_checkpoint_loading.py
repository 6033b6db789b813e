"""Reports about loaded weights, and weights that are refused."""

from collections import OrderedDict

import pytest
import torch
from tiny_run import Tiny, make_runner
from torch import nn

from mmattn.models import ViT
from mmattn.weights.load import (
    find_weights,
    initialize_from_checkpoint,
    load_weights,
    partial_loads,
)
from mmattn.weights.report import LoadReport


def wrapped(weights, prefix):
    return OrderedDict((prefix + key, value) for key, value in weights.items())


def save(tmp_path, **content):
    path = tmp_path / 'weights.pth'
    torch.save(content, path)
    return str(path)


PLACES = {
    'state_dict': lambda w: dict(state_dict=w, model_ema=None, meta={}),
    'model': lambda w: dict(model=w, optimizer={}),
    'both': lambda w: dict(model={'of_a_part': torch.ones(1)}, state_dict=w),
    'itself': lambda w: w,
    'data-parallel': lambda w: dict(state_dict=wrapped(w, 'module.')),
}


@pytest.mark.parametrize('place', PLACES.values(), ids=PLACES)
def test_weights_are_found(place):
    weights = Tiny().state_dict()
    found = find_weights(place(weights), 'file')
    assert list(found) == list(weights)


def test_version_numbers_survive_the_prefix():
    weights = wrapped(Tiny().state_dict(), 'module.')
    weights._metadata = {'module': dict(version=1), 'module.backbone.1': {'version': 2}}
    found = find_weights(weights, 'file')
    assert found._metadata == {'': {'version': 1}, 'backbone.1': {'version': 2}}


def test_version_numbers_reach_the_modules_of_a_run(tmp_path, monkeypatch):
    """Modules rename or reshape what an older version of them has saved."""
    read = []

    def noted(self, state_dict, prefix, local_metadata, *args):
        read.append(local_metadata.get('version'))

    weights = Tiny().state_dict()
    weights._metadata['']['version'] = 7
    path = save(tmp_path, state_dict=weights)
    monkeypatch.setattr(Tiny, '_load_from_state_dict', noted)
    make_runner(tmp_path / 'run', load_from=path).load_or_resume()
    assert read == [7]


AVERAGE = {'model_ema': {'w': torch.ones(1)}, 'epoch': 1}


@pytest.mark.parametrize(
    ('content', 'held'), [(AVERAGE, 'keys model_ema, epoch'), ([1], 'it is list')]
)
def test_a_file_without_weights_says_what_it_has(content, held):
    with pytest.raises(ValueError, match=f'file.pth holds no weights.*{held}'):
        find_weights(content, 'file.pth')


def test_every_tensor_is_accounted_for():
    model = Tiny(classes=5)
    weights = Tiny(classes=3).state_dict()
    del weights['backbone.0.bias'], weights['backbone.1.num_batches_tracked']
    weights['extra'] = torch.ones(1)
    report = load_weights(model, weights)
    assert report.matched == [
        'backbone.0.weight',
        *(f'backbone.1.{name}' for name in ('weight', 'bias')),
        *(f'backbone.1.running_{name}' for name in ('mean', 'var')),
    ]
    assert report.missing == ['backbone.0.bias', 'head.weight', 'head.bias']
    shapes = {'head.weight': ((3, 4), (5, 4)), 'head.bias': ((3,), (5,))}
    assert report.mismatched == shapes
    assert report.unexpected == ['extra']
    assert report.share('backbone.') == pytest.approx(24 / 28)
    assert torch.equal(model.backbone[0].weight, weights['backbone.0.weight'])
    assert str(report) == (
        '5 of 8 tensors matched (0 resized), 3 missing (2 for their shape), '
        '1 unexpected; 45.3% of the elements'
    )
    assert not any(module._load_state_dict_pre_hooks for module in model.modules())


def test_what_a_backbone_resizes_is_matched(caplog):
    converted = []

    class Counted(ViT):
        def convert_weights(self, weights):
            converted.append(len(weights))
            return super().convert_weights(weights)

    small = ViT('tiny', img_size=64).state_dict()
    model = nn.ModuleDict({'backbone': Counted('tiny', img_size=96, in_channels=4)})
    report = load_weights(model, wrapped(small, 'backbone.'))
    assert report.resized == {
        'backbone.stem.pos_embed': ((1, 16, 192), (1, 36, 192)),
        'backbone.stem.proj.weight': ((192, 3, 16, 16), (192, 4, 16, 16)),
    }
    assert not report.missing and converted == [len(small)]
    with caplog.at_level('INFO', 'mmattn'):
        report.log('file.pth')
    resized = 'resized backbone.stem.pos_embed from (1, 16, 192) to (1, 36, 192)'
    assert caplog.messages[0] == f'file.pth: {report}'
    assert f'file.pth: {resized}' in caplog.messages


def test_half_of_a_backbone_suffices_of_weights_that_are_its_start(
    tmp_path, monkeypatch
):
    arch = dict(embed_dims=16, depth=4, num_heads=2)
    model = ViT(arch, attention='mhsa', img_size=32, patch_size=4)
    weights = model.state_dict()
    kept = {k: v for k, v in weights.items() if not k.startswith('blocks.3.')}
    path = save(tmp_path, state_dict=kept)
    with pytest.raises(ValueError, match='and the rest would be noise'):
        initialize_from_checkpoint(model, path)
    monkeypatch.setattr(ViT, 'starts', {'tiny': path})
    assert 0.5 < initialize_from_checkpoint(model, path).share() < 0.9
    few = {k: v for k, v in kept.items() if 'blocks' not in k}
    save(tmp_path, state_dict=few)
    with pytest.raises(ValueError, match='and the rest would be noise'):
        initialize_from_checkpoint(model, path)
    weights['out_norms.3.weight'] = torch.ones(3)
    save(tmp_path, state_dict=weights)
    with pytest.raises(ValueError, match='another shape'):
        initialize_from_checkpoint(model, path)


def test_scalars_of_old_checkpoints_are_matched():
    """Before PyTorch 0.4 a scalar was saved as one element of one dimension."""
    module = nn.Module()
    module.scale = nn.Parameter(torch.tensor(0.0))
    report = load_weights(module, {'scale': torch.tensor([2.0])})
    assert report.matched == ['scale']
    assert module.scale.item() == 2


def half(weights):
    return {k: v for k, v in weights.items() if not k.startswith('backbone.0')}


BACKBONE = {k: v for k, v in Tiny().state_dict().items() if k.startswith('backbone')}
STUDENT = wrapped(Tiny().state_dict(), 'student.')
FINE_TUNING = {
    'same': (Tiny().state_dict(), None),
    'other-classes': (Tiny(classes=9).state_dict(), None),
    'backbone-only': (BACKBONE, None),
    'with-leftovers': (Tiny().state_dict() | {'rpn.w': torch.ones(1)}, None),
    'other-width': (Tiny(width=8).state_dict(), 'of the backbone have another shape'),
    'part-of-backbone': (half(Tiny().state_dict()), 'holds 57% of the backbone'),
    'head-only': (Tiny().head.state_dict(prefix='head.'), 'holds 0% of the backbone'),
    'student': (STUDENT, "8 names of the file would match without 'student.'"),
    'no-prefix': (
        Tiny().backbone.state_dict(),
        "6 names of the file would match with 'backbone.' .*belong in its init_cfg",
    ),
}


@pytest.mark.parametrize(('weights', 'error'), FINE_TUNING.values(), ids=FINE_TUNING)
def test_fine_tuning_needs_the_backbone(tmp_path, weights, error):
    path = save(tmp_path, state_dict=weights)
    runner = make_runner(tmp_path / 'run', load_from=path)
    if error is None:
        return runner.load_or_resume()
    with pytest.raises(ValueError, match=f'(?s)weights.pth is not loaded.*{error}'):
        runner.load_or_resume()


def test_nine_tenths_of_the_backbone_are_enough():
    def check(matched: int):
        sizes = {'backbone.a': matched, 'backbone.b': 100 - matched, 'head': 1000}
        names = ['backbone.a'], ['backbone.b', 'head']
        report = LoadReport(sizes, names[0], matched=names[0], missing=names[1])
        report.check('file', exact=False, part='backbone.')

    check(90)
    with pytest.raises(ValueError, match='file is not loaded: it holds 89% of the'):
        check(89)


@pytest.mark.parametrize(
    ('name', 'use'),
    [
        ('other-classes', lambda runner, path: runner.test()),
        ('backbone-only', lambda runner, path: runner.val()),
        ('with-leftovers', lambda runner, path: runner.resume(path)),
        ('with-leftovers', lambda runner, path: runner.load_checkpoint(path, strict=1)),
    ],
    ids=['test', 'validate', 'resume', 'strict'],
)
def test_resuming_and_testing_need_everything(tmp_path, name, use):
    weights = FINE_TUNING[name][0]
    path = save(tmp_path, state_dict=weights, meta={}, message_hub={})
    runner = make_runner(tmp_path / 'run', test=True, val=True, load_from=path)
    with pytest.raises(ValueError, match='weights.pth .*does not match the model exac'):
        use(runner, path)


def test_after_a_resume_fine_tuning_has_its_own_rule_again(tmp_path):
    make_runner(tmp_path / 'run').train()
    runner = make_runner(tmp_path / 'run')
    runner.resume(str(tmp_path / 'run' / 'iter_4.pth'))
    runner.load_checkpoint(save(tmp_path, state_dict=FINE_TUNING['other-classes'][0]))


def test_a_partial_load_on_purpose_is_never_of_nothing(tmp_path):
    path = save(tmp_path, state_dict=FINE_TUNING['other-width'][0])
    options = dict(load_from=path, allow_partial_load=True)
    assert make_runner(tmp_path / 'run', test=True, **options).test()
    save(tmp_path, state_dict={'w': torch.ones(1)})
    with pytest.raises(ValueError, match='nothing in it matches') as error:
        make_runner(tmp_path / 'run', **options).train()
    assert 'allow-partial-load' not in str(error.value)
    assert 'weights of another model: correct the file in `load_' in str(error.value)


def test_weights_alone_are_not_resumed(tmp_path):
    path = save(tmp_path, state_dict=Tiny().state_dict())
    runner = make_runner(tmp_path / 'run', load_from=path, resume=True)
    with pytest.raises(ValueError, match='cannot be resumed: it has no meta and no'):
        runner.train()


VIT = dict(arch=dict(embed_dims=16, depth=2, num_heads=2), img_size=32)
PRETRAINED = {
    'alone': ('', None, None),
    'whole-model': ('backbone.', None, None),
    'prefix': ('teacher.backbone.', 'teacher.backbone', None),
    'dotted-prefix': ('backbone.', 'backbone.', None),
    'wrong-prefix': ('backbone.', 'encoder.', "no weights below the prefix 'encoder.'"),
    'no-prefix': ('encoder.', None, "(?s)nothing in it.*match without 'encoder.'"),
}


@pytest.mark.parametrize(
    ('stored', 'prefix', 'error'), PRETRAINED.values(), ids=PRETRAINED
)
def test_pretrained_backbones(tmp_path, stored, prefix, error):
    source = ViT(**VIT)
    weights = wrapped(source.state_dict(), stored)
    weights['head.fc.weight'] = torch.ones(1)
    path = save(tmp_path, state_dict=weights)
    init_cfg = dict(type='Pretrained', checkpoint=path, prefix=prefix)
    model = ViT(**VIT, init_cfg=init_cfg)
    if error is not None:
        with pytest.raises(ValueError, match=error):
            model.init_weights()
        return
    model.init_weights()
    for key, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)


def test_a_backbone_of_ours_does_not_start_from_another(tmp_path):
    path = save(tmp_path, state_dict=ViT(**VIT).state_dict())
    other = VIT | dict(arch=dict(embed_dims=16, depth=4, num_heads=2))
    model = ViT(**other, init_cfg=dict(type='Pretrained', checkpoint=path))
    with pytest.raises(ValueError, match=r'it holds \d\d% of the model'):
        model.init_weights()
    with partial_loads(), partial_loads(False):  # the inner one changes nothing
        model.init_weights()


def test_other_modules_may_load_parts_but_not_nothing(tmp_path):
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    part = save(tmp_path, state_dict={'0.weight': torch.ones(1, 1)})
    report = initialize_from_checkpoint(module, part)
    assert report.matched == ['0.weight']
    with pytest.raises(ValueError, match='nothing in it matches'):
        initialize_from_checkpoint(nn.Conv2d(1, 1, 1), part)
