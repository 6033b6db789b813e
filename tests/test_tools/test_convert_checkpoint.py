"""tools/converters/convert_checkpoint.py: layouts, wrappers, refusals, verification."""

import pickle
from pathlib import PurePosixPath

import mmcv
import numpy as np
import pytest
import timm
import torch
from mmdet.models.backbones import PyramidVisionTransformerV2

from mmattn.models import DAT, PVT, HMaiT, PVTv2
from mmattn.models.backbones.pvt import to_official_state_dict
from mmattn.weights.load import initialize_from_checkpoint
from tools.converters import compare_with_source as comparison
from tools.converters import convert_checkpoint as tool

NARROW = dict(embed_dims=32, num_layers=[2] * 4)


@pytest.fixture(autouse=True)
def new_logger(forget_instances):
    """Let a new logger write to this test's output, not to the last test's."""
    forget_instances()


@pytest.fixture(scope='module')
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp('image') / 'odd.png'
    pixels = np.random.default_rng(0).integers(0, 256, (53, 70, 3), np.uint8)
    mmcv.imwrite(pixels, str(path))
    return str(path)


def save(path, content):
    torch.save(content, path)
    return str(path)


def official_pvt():
    model = PVT('nano', out_type='cls_token')
    return to_official_state_dict(model.state_dict()) | {'head.weight': torch.ones(2)}


def timm_pvt_v2():
    return timm.create_model('pvt_v2_b0', num_classes=3).state_dict()


def hmait():
    return HMaiT('nano').state_dict()


def in_mmdet(backbone):
    weights = {f'backbone.{n}': x for n, x in backbone.state_dict().items()}
    return dict(state_dict=weights | {'neck.weight': torch.ones(2)}, meta=dict(epoch=1))


# --model, options, what is in SRC, layout, what it is compared with, left out, missing
SOURCES = {
    'pvt-official': (
        ('pvt_nano', {}),
        official_pvt,
        ('official', 'not compared: no package has pvt_nano'),
        [
            'head.weight',
            'stages.3.downsample.cls_token',
            'out_norms.3.weight',
            'out_norms.3.bias',
        ],
        [],
    ),
    'pvt_v2-mmdet': (
        ('pvt_v2_b0', {}),
        lambda: in_mmdet(PyramidVisionTransformerV2(**NARROW)),
        ('mmdet', "compared with mmdet's own pvt_v2_b0"),
        ['neck.weight'],
        [],
    ),
    'pvt_v2-timm': (
        ('pvt_v2_b0', {}),
        timm_pvt_v2,
        ('timm', "compared with timm's own pvt_v2_b0"),
        ['head.weight', 'head.bias'],
        [],
    ),
    'dat-classifier': (
        ('dat_nano', {}),
        lambda: dict(model=DAT('nano', out_indices=3).state_dict()),
        ('mmattn', 'not compared'),
        [],
        [f'out_norms.{i}.{leaf}' for i in range(3) for leaf in ('weight', 'bias')],
    ),
    'hmait': (
        ('hmait_nano', {}),
        lambda: dict(state_dict=hmait()),
        ('one that HMaiT reads', 'not compared'),
        [],
        [],
    ),
}


@pytest.mark.parametrize('case', SOURCES.values(), ids=SOURCES)
def test_what_is_written_is_what_init_cfg_loads(case, tmp_path, image, capsys):
    (name, options), content, (layout, compared), left_out, missing = case
    src, dst = save(tmp_path / 'src.pth', content()), tmp_path / 'new' / 'dst.pth'
    arguments = [src, str(dst), '--model', name, '--verify', image]
    if options:
        arguments += ['--options', *(f'{k}={v}' for k, v in options.items())]
    assert tool.main(arguments) == 0
    out = capsys.readouterr().out
    assert f'layout: {layout}' in out and compared in out
    assert all(f'{key}' in out for key in left_out)

    backbone = tool.known_models()[name].build(options)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    report = initialize_from_checkpoint(backbone, str(dst))
    assert report.missing == missing and not report.unexpected
    assert len(report.matched) == len(report.sizes) - len(missing)
    changed = [
        key
        for key, value in backbone.state_dict().items()
        if (value != before[key]).any()
    ]
    matrices = [key for key in report.matched if before[key].dim() > 1]
    assert set(matrices) <= set(changed)
    assert torch.load(dst)['meta']['layout'] == layout


WRAPPERS = {
    'flat': lambda weights: weights,
    'module': lambda weights: dict(module=weights, global_steps=3),
    'parallel': lambda weights: dict(
        model={f'module.{n}': x for n, x in weights.items()}
    ),
    'classifier': lambda weights: {
        f'model.backbone.{n}': x for n, x in weights.items()
    },
}


@pytest.fixture(scope='module')
def weights():
    return PVTv2('b0').state_dict()


@pytest.mark.parametrize('wrap', WRAPPERS.values(), ids=WRAPPERS)
def test_weights_are_found_wherever_they_are(wrap, weights, tmp_path):
    src, dst = save(tmp_path / 'src.pth', wrap(weights)), tmp_path / 'dst.pth'
    assert tool.main([src, str(dst), '--model', 'pvt_v2_b0']) == 0
    written = torch.load(dst)['state_dict']
    assert written.keys() == weights.keys()
    assert all(torch.equal(written[name], value) for name, value in weights.items())


def without(weights, *names):
    return {name: x for name, x in weights.items() if name not in names}


WRONG = {
    'another-size': (
        'pvt_v2_b1',
        lambda weights: weights,
        r'it is not pvt_v2_b1(.|\n)*of another shape(.|\n)*--model pvt_v2_b0',
    ),
    'another-depth': (
        'hmait_nano',
        lambda weights: without(hmait(), 'stages.3.blocks.1.norm1.bias'),
        'missing in the file: stages.3.blocks.1.norm1.bias',
    ),
    'no-layout': (
        'pvt_v2_b0',
        lambda weights: {'conv1.weight': torch.ones(3)},
        'is not converted: these are not the weights of a PVT(.|\n)*conv1.weight',
    ),
    'no-weights': ('pvt_v2_b0', lambda weights: dict(epoch=3), 'holds no weights'),
}


@pytest.mark.parametrize('name, content, message', WRONG.values(), ids=WRONG)
def test_wrong_weights_are_refused(name, content, message, weights, tmp_path):
    src, dst = save(tmp_path / 'src.pth', content(weights)), tmp_path / 'dst.pth'
    with pytest.raises(ValueError, match=message):
        tool.main([src, str(dst), '--model', name])
    assert [path.name for path in tmp_path.iterdir()] == ['src.pth']


def test_nothing_is_overwritten_without_force(weights, tmp_path):
    src, dst = save(tmp_path / 'src.pth', weights), tmp_path / 'dst.pth'
    dst.write_text('precious')
    arguments = [src, str(dst), '--model', 'pvt_v2_b0']
    with pytest.raises(ValueError, match='dst.pth already exists; --force'):
        tool.main(arguments)
    assert dst.read_text() == 'precious'
    assert tool.main([*arguments, '--force']) == 0
    assert torch.load(dst)['state_dict'].keys() == weights.keys()


def test_code_in_a_checkpoint_runs_only_if_trusted(weights, tmp_path):
    src, dst = tmp_path / 'src.pth', tmp_path / 'dst.pth'
    save(src, dict(model=weights, folder=PurePosixPath('runs')))
    arguments = [str(src), str(dst), '--model', 'pvt_v2_b0']
    with pytest.raises(ValueError, match='would run code.*PurePosixPath'):
        tool.main(arguments)
    assert not dst.exists()
    assert tool.main([*arguments, '--trust-checkpoint']) == 0
    src.write_bytes(pickle.dumps(1)[:-1])
    with pytest.raises(ValueError, match='not a readable checkpoint'):
        tool.main([*arguments, '--force'])


def test_a_missing_image_is_noticed_before_anything_is_written(weights, tmp_path):
    src, dst = save(tmp_path / 'src.pth', weights), tmp_path / 'dst.pth'
    with pytest.raises(ValueError, match='no readable image at nowhere.png'):
        tool.main([src, str(dst), '--model', 'pvt_v2_b0', '--verify', 'nowhere.png'])
    assert not dst.exists()


def test_a_difference_is_noticed(weights, tmp_path, image, monkeypatch, capsys):
    src, dst = save(tmp_path / 'src.pth', timm_pvt_v2()), tmp_path / 'dst.pth'
    peers = comparison.timm_pvt_v2

    def other(model, weights):
        norm = weights['stages.0.norm.weight']
        return peers(model, weights | {'stages.0.norm.weight': 1.01 * norm})

    monkeypatch.setitem(comparison.PEERS, ('pvt_v2', 'timm'), ('timm', other))
    arguments = [src, str(dst), '--model', 'pvt_v2_b0', '--verify', image]
    assert tool.main(arguments) == 1
    assert 'largest difference' in capsys.readouterr().out


def test_models_are_all_backbones_in_all_sizes(capsys):
    names = {'pvt_tiny', 'pvt_v2_b2', 'pvt_v2_b2_li', 'dat_tiny', 'dat_plus_plus_tiny'}
    assert names | {'hmait_tiny', 'mait_tiny'} <= tool.known_models().keys()
    with pytest.raises(SystemExit):
        tool.main(['src.pth', 'dst.pth', '--model', 'resnet50'])
    assert 'invalid choice' in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"PVT does not accept \['window'\]"):
        tool.known_models()['pvt_tiny'].build(dict(window=3))
