"""The tools that draw attention kernels and feature norms, end to end and in parts."""

import importlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

for name in ('mmdet', 'mmseg', 'mmpretrain', 'cv2', 'matplotlib'):
    pytest.importorskip(name)

import cv2  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from mmengine.config import Config  # noqa: E402

from mmattn.analysis import (  # noqa: E402
    attention_kernels,
    feature_norms,
    image_in_model,
)
from mmattn.analysis.flops import build  # noqa: E402

ROOT = Path(__file__).parents[2]
load_models, make_parser = image_in_model.load_models, image_in_model.make_parser

BACKBONE = """dict(
    _delete_=True, type='mmattn.LiSANet', img_size=64, arch=dict(
        embed_dims=(16, 32), depths=(1, 2), mlp_ratios=(2, 2), conv_stages=1,
        patterns=2))"""
CONFIGS = {
    'detector': f"""
_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'
model = dict(backbone={BACKBONE}, neck=dict(in_channels=[16, 32]))
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('ori_shape', 'img_shape'))]))
""",
    'segmentor': f"""
_base_ = 'mmattn::demo/upernet_ivit_n_landcover.py'
model = dict(
    backbone={BACKBONE},
    decode_head=dict(in_channels=[16, 32], in_index=[0, 1]))
""",
    'classifier': """
_base_ = 'mmattn::classification/lisanet_i_150e_in1k.py'
model = dict(
    backbone=dict(_delete_=True, type='mmattn.LiSANet', arch=dict(
        embed_dims=(32,), depths=(8,), mlp_ratios=(2,), conv_stages=0, patterns=2)),
    head=dict(in_channels=32))
""",
}
HEIGHT, WIDTH = 60, 90


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with configs, an image, and a checkpoint of the detector."""
    folder = tmp_path_factory.mktemp('work')
    for name, text in CONFIGS.items():
        (folder / f'{name}.py').write_text(text)
    rng = np.random.default_rng(0)
    yellow = rng.integers(0, 255, (HEIGHT, WIDTH, 3)) * (0, 1, 1)  # BGR
    cv2.imwrite(str(folder / 'image.png'), yellow)
    model = build(Config.fromfile(folder / 'detector.py'), device='cpu')
    torch.save(dict(state_dict=model.state_dict()), folder / 'detector.pth')
    return folder


@pytest.fixture
def draw(work, monkeypatch):
    """Runs a tool in that folder; returns the picture it wrote and matplotlib's."""
    monkeypatch.chdir(work)
    figures = []

    def call(name, *args):
        tool = importlib.import_module(f'tools.analysis.{name}')
        monkeypatch.setattr(tool, 'plt', Mock(wraps=plt, close=figures.append))
        tool.main([*map(str, args), '--out', 'out/picture.png'])
        plt.close(figures[-1])
        return cv2.imread('out/picture.png'), figures[-1]

    return call


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def panels(figure):
    return [
        image
        for axis in figure.axes
        for image in axis.images
        if axis.get_label() != '<colorbar>'
    ]


def boxes(axis):
    """Left, top, width and height of red boxes, in pixels of the panel's image."""
    red = [p for p in axis.patches if p.get_edgecolor() == (1, 0, 0, 1)]
    return [
        (*(p + 0.5 for p in b.get_xy()), b.get_width(), b.get_height()) for b in red
    ]


@pytest.mark.parametrize('task', CONFIGS)
@pytest.mark.parametrize(
    'tool, drawn',
    [
        (
            'draw_attention_kernels',
            {'pyramid': ['1.0', '1.1'], 'plain': ['0.0', '0.7']},
        ),
        ('draw_feature_norms', {'pyramid': ['0.0', '1.1'], 'plain': ['0.0', '0.7']}),
    ],
    ids=['kernels', 'norms'],
)
def test_every_task_is_drawn(draw, tool, drawn, task):
    picture, figure = draw(tool, f'{task}.py', 'image.png')
    assert picture.shape[0] > 200 and picture.shape[1] > 300 and picture.std() > 20
    words = texts(figure)
    assert f'{task}, random weights' in words
    for block in drawn['plain' if task == 'classifier' else 'pyramid']:
        stage, index = block.split('.')
        name = f': stages.{stage}.blocks.{index}'
        assert any(word.endswith(name) for word in words)


def test_kernels_of_queries_beside_another_models(draw):
    """Every panel holds what the library says, of the layer and head that it names."""
    queries, heads = [(10, 20), (30, 45)], (1, 0)
    options = (
        'detector.py', 'image.png', '--checkpoint', 'detector.pth', '--compare',
        'classifier.py', '--compare-cfg-options', 'model.backbone.mixer=self_attention',
    )  # fmt: skip
    _, figure = draw(
        'draw_attention_kernels', *options, '--query', 10, 20, '--query', 30, 45,
        '--layers', -1, '--heads', *heads,
    )  # fmt: skip
    words = texts(figure)
    for text in ('query (10, 20)', 'query (30, 45)', '-max'):
        assert text in words
    for text in (
        'detector, detector.pth',
        'classifier, model.backbone.mixer=self_attention, random weights',
    ):
        assert words.count(text) == 2
    assert words.count('head 0') == words.count('head 1') == 4

    models = load_models(make_parser('', '').parse_args(options))
    found = [
        attention_kernels(m.backbone, m.inputs, [m.place(*q) for q in queries])[-1]
        for m in models
    ]
    expected = []
    for i in range(len(queries)):
        expected.append(models[0].picture)
        for kernels in found:
            for head in heads:
                kernel = kernels.kernels[i, head].numpy()
                expected.append(kernel / abs(kernel).max())
    drawn = panels(figure)
    for image, values in zip(drawn, expected, strict=True):
        np.testing.assert_allclose(image.get_array(), values, rtol=1e-4, atol=1e-5)
    limits = [image.get_clim() for image in drawn[1:5]]
    assert limits == [(-1, 1), (-1, 1), (0, 1), (0, 1)]
    means = drawn[0].get_array()[:43].mean((0, 1))
    assert means[0] > 100 and means[1] > 100 and means[2] == 0
    # (10.5, 20.5) of 60 x 90 pixels is (7.5, 14.6) of 43 x 64: row 0 and column 1 on
    # the grid of 8 x 8 cells of 8 pixels, which the padded picture has, too.
    assert boxes(drawn[1].axes) == [(1, 0, 1, 1)]
    assert boxes(drawn[0].axes) == [(8, 0, 8, 8)]


def test_chosen_norms_are_drawn_beside_another_models(draw):
    _, figure = draw(
        'draw_feature_norms', 'detector.py', 'image.png', '--layers', 2, 0,
        '--compare', 'classifier.py',
    )  # fmt: skip
    words = texts(figure)
    assert [w for w in words if 'blocks.' in w] == [
        '2: stages.1.blocks.1', '0: stages.0.blocks.0', '2: stages.0.blocks.2',
        '0: stages.0.blocks.0',
    ]  # fmt: skip
    (model,) = load_models(make_parser('', '').parse_args(['detector.py', 'image.png']))
    norms = feature_norms(model.backbone, model.inputs)
    drawn = [image.get_array() for image in panels(figure)]
    assert len(drawn) == 6
    np.testing.assert_array_equal(drawn[1], norms['stages.1.blocks.1'])
    np.testing.assert_array_equal(drawn[2], norms['stages.0.blocks.0'])


WRONG = {
    'no-image': (['detector.py', 'no.png'], 'no readable image at no.png'),
    'not-an-image': (['detector.py', 'detector.py'], 'no readable image at detector'),
    'layer': (
        ['detector.py', 'image.png', '--layers', '9'],
        r'layers of detector, random weights must be in \[-2, 1\], got 9',
    ),
    'head': (
        ['detector.py', 'image.png', '--heads', '0', '2'],
        r'heads of stages.1.blocks.0.attn of detector.* must be in \[-2, 1\], got 2',
    ),
    'query': (
        ['detector.py', 'image.png', '--query', '60', '3'],
        'query 60 3 is outside the 60x90 image',
    ),
    'checkpoint': (
        ['segmentor.py', 'image.png', '--checkpoint', 'detector.pth'],
        'detector.pth is not loaded: it does not match the model exactly',
    ),
    'no-backbone': (['backbone.py', 'image.png'], 'backbone.py must be one of mmdet'),
    'no-pipeline': (['trained.py', 'image.png'], 'trained.py has no test_dataloader'),
}


@pytest.mark.parametrize('args, message', WRONG.values(), ids=[*WRONG])
def test_what_is_wrong_is_named(draw, args, message):
    Path('backbone.py').write_text("model = dict(type='mmattn.IViT', arch='nano')")
    Path('trained.py').write_text(
        "_base_ = 'detector.py'\ntest_dataloader = dict(_delete_=True, dataset=dict())"
    )
    with pytest.raises(ValueError, match=message):
        draw('draw_attention_kernels', *args)


@pytest.mark.parametrize('option', ['--compare-checkpoint', '--compare-cfg-options'])
def test_options_of_the_other_model_need_one(draw, capsys, option):
    with pytest.raises(SystemExit):
        draw('draw_feature_norms', 'detector.py', 'image.png', option, 'a=b')
    assert f'{option} needs --compare' in capsys.readouterr().err


def test_a_checkpoint_that_matches_in_part_is_loaded_when_asked(draw):
    _, figure = draw(
        'draw_feature_norms', 'segmentor.py', 'image.png',
        '--checkpoint', 'detector.pth', '--allow-partial-load',
    )  # fmt: skip
    assert 'segmentor, detector.pth' in texts(figure)
