"""tools/analysis/draw.py shows what the library says of a model."""

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch import nn

from mmattn.analysis import attention_locality, mask_layers
from mmattn.analysis.flops import build
from tools.analysis import draw as tool

MAIT = """
_base_ = 'mmattn::classification/mait_t_400e_in1k.py'
model = dict(
    backbone=dict(
        _delete_=True, type='mmattn.MaiT', out_type='cls_token', img_size=32,
        arch=dict(embed_dims=24, depth=3, num_heads=3), {settings}),
    head=dict(in_channels=24))
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=64, edge='short'),
    dict(type='PackInputs')]))
"""
HARD = MAIT.format(settings='masking=[2, (1,), 0]')
CONFIGS = {
    'hard': HARD,
    'folder': HARD.replace(
        'dataset=dict(',
        "dataset=dict(_delete_=True, type='CustomDataset', data_root='.', "
        "ann_file='images.txt', with_label=False, ",
    ),
    'soft': MAIT.format(settings="masking='soft', depth=8"),
    'lisa': """
_base_ = 'mmattn::mask_rcnn/ivit_t_3x_coco.py'
model = dict(
    backbone=dict(
        _delete_=True, type='mmattn.LiSANet', img_size=64, arch=dict(
            embed_dims=(16, 32), depths=(1, 2), mlp_ratios=(2, 2), conv_stages=1,
            patterns=2)),
    neck=dict(in_channels=[16, 32]))
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('ori_shape', 'img_shape'))]))
""",
    'plain_lisa': """
_base_ = 'mmattn::classification/lisanet_i_150e_in1k.py'
model = dict(
    backbone=dict(_delete_=True, type='mmattn.LiSANet', arch=dict(
        embed_dims=(32,), depths=(8,), mlp_ratios=(2,), conv_stages=0, patterns=2)),
    head=dict(in_channels=32))
""",
    'dat': """
_base_ = 'mmattn::classification/dat_t_300e_in1k.py'
model = dict(
    backbone=dict(
        _delete_=True, type='mmattn.DATPlusPlus', img_size=64, out_indices=3,
        arch=dict(
            embed_dims=(8, 8, 16, 16), depths=(1, 1, 2, 2), num_heads=(1, 1, 2, 4),
            num_groups=(1, 1, 1, 2))),
    head=dict(in_channels=16))
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(100, 100)),
    dict(type='PackInputs')]))
""",
    'detr': "_base_ = 'mmattn::demo/deformable_detr_ivit_n_hela.py'",
    'backbone': "model = dict(type='mmattn.IViT', arch='nano')",
}
IMAGES = {'wide.png': (50, 75), 'high.png': (80, 40), 'photo.png': (60, 90)}


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with configs, images, and checkpoints whose heads are not all alike."""
    folder = tmp_path_factory.mktemp('work')
    for name, text in CONFIGS.items():
        (folder / f'{name}.py').write_text(text)
    (folder / 'images.txt').write_text('high.png\nwide.png\n')
    rng = np.random.default_rng(0)
    for name, size in IMAGES.items():
        yellow = rng.integers(0, 255, (*size, 3)) * (name != 'photo.png', 1, 1)  # BGR
        cv2.imwrite(str(folder / name), yellow)
    for name in ('hard', 'soft', 'lisa'):
        torch.manual_seed(1)
        model = build(Config.fromfile(folder / f'{name}.py'), device='cpu').eval()
        if name != 'lisa':
            for layer in mask_layers(model.backbone).values():
                nn.init.normal_(layer.qkv.weight, std=0.5)
                if layer.alpha is not None:
                    nn.init.normal_(layer.alpha_logit)
        torch.save(dict(state_dict=model.state_dict()), folder / f'{name}.pth')
    return folder


@pytest.fixture
def draw(work, monkeypatch):
    """Runs the tool there, checks the picture and returns the rows of its csv."""
    monkeypatch.chdir(work)
    monkeypatch.setenv('COLUMNS', '80')

    def call(kind, *args):
        tool.main([kind, *map(str, args), '--out', 'out/picture.png'])
        picture = cv2.imread('out/picture.png')
        assert min(picture.shape[:2]) > 150 and picture.std() > 20
        path = Path('out/picture.csv')
        return list(csv.DictReader(path.open())) if path.exists() else []

    return call


def loaded(work, name):
    model = build(Config.fromfile(work / f'{name}.py'), device='cpu').eval()
    model.load_state_dict(torch.load(work / f'{name}.pth')['state_dict'])
    return model.backbone


def inputs(work):
    """The images as the classifiers' pipeline and preprocessor should make them."""
    mean, std = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
    images = []
    for name, size in (('wide.png', (96, 64)), ('high.png', (64, 128))):
        image = cv2.resize(cv2.imread(str(work / name)), size)[..., ::-1]
        normalized = (image - mean) / std
        images.append(torch.tensor(normalized, dtype=torch.float32).permute(2, 0, 1))
    return images


HARD_MODEL = 'hard.py', 'wide.png', 'high.png', '--checkpoint', 'hard.pth'


def test_locality_is_that_of_the_checkpoint_averaged_over_images(draw, work):
    rows = draw('locality', *HARD_MODEL)
    expected = attention_locality(loaded(work, 'hard'), inputs(work))
    scores = [float(row['locality']) for row in rows]
    np.testing.assert_allclose(scores, expected.flatten(), rtol=1e-4)
    places = [(int(row['layer']), int(row['head'])) for row in rows]
    assert places == [(i, h) for i in range(3) for h in range(3)]
    assert [row['mask'] for row in rows] == ['hard', 'hard', '', '', 'hard', *[''] * 4]


def test_samples_of_the_test_data_set_are_its_first_images(draw, work):
    weights = '--checkpoint', 'hard.pth'
    rows = draw('similarity', 'folder.py', '--samples', 1, *weights)
    expected = draw('similarity', 'hard.py', 'high.png', *weights)
    assert [r['similarity'] for r in rows] == [r['similarity'] for r in expected]


@pytest.mark.parametrize(
    'args',
    [
        'alphas soft.py --checkpoint soft.pth',
        'kernels lisa.py photo.png --checkpoint lisa.pth --query 30 45 --heads 1 '
        '--compare plain_lisa.py',
        'norms lisa.py photo.png --layers 2 0 --compare plain_lisa.py',
        'points dat.py wide.png --query 20 5',
        'diversity hard.py wide.png high.png --checkpoint hard.pth',
        pytest.param('boxes detr.py photo.png', marks=pytest.mark.slow),
    ],
    ids=lambda args: args.split()[0],
)
def test_pictures_are_written(draw, args):
    draw(*args.split())


@pytest.mark.parametrize(
    'args, message',
    [
        ('diversity hard.py', 'either image files or --samples'),
        ('alphas soft.py --checkpoint hard.pth', 'does not match the model'),
        ('similarity hard.py wide.png --last 4', 'between 2 and 3 layers, got 4'),
        ('locality folder.py --samples 3', 'must be between 1 and 2'),
        ('locality hard.py wide.png no.png', 'no readable image at no.png'),
        ('kernels lisa.py photo.png --query 60 3', 'query 60 3 is outside'),
        ('kernels backbone.py photo.png', r"backbone.py must be one of \['mmdet'"),
    ],
)
def test_what_is_wrong_is_named(draw, args, message):
    with pytest.raises(ValueError, match=message):
        draw(*args.split())
