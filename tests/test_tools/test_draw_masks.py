"""The tools that draw locality, alphas and similarity of layers, end to end."""

import csv
import importlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

for name in ('mmpretrain', 'mmdet', 'cv2', 'matplotlib'):
    pytest.importorskip(name)

import cv2  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from mmengine.config import Config  # noqa: E402
from torch import nn  # noqa: E402

from mmattn.analysis import (  # noqa: E402
    attention_locality,
    head_diversity,
    layer_heads,
    layer_similarity,
    mask_layers,
)
from mmattn.analysis.flops import build  # noqa: E402

CLASSIFIER = """
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
CONFIGS = {
    'hard': CLASSIFIER.format(settings='masking=[2, (1,), 0]'),
    'folder': CLASSIFIER.format(settings='masking=[2, (1,), 0]').replace(
        'dataset=dict(',
        "dataset=dict(_delete_=True, type='CustomDataset', data_root='.', "
        "ann_file='images.txt', with_label=False, ",
    ),
    'soft': CLASSIFIER.format(settings="masking='soft', depth=8"),
    'random': CLASSIFIER.format(settings="masking='sch1', random_mask_seed=3"),
    'detector': """
_base_ = 'mmattn::mask_rcnn/hmait_t_1x_coco.py'
model = dict(backbone=dict(arch='nano'))
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs', meta_keys=('ori_shape', 'img_shape'))]))
""",
    'timm': """
_base_ = 'mmattn::classification/mait_t_400e_in1k.py'
model = dict(
    backbone=dict(
        _delete_=True, type='mmpretrain.TIMMBackbone', features_only=False,
        model_name='deit_tiny_patch16_224', depth=2, img_size=(64, 96)))
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(96, 64)),
    dict(type='PackInputs')]))
""",
}
IMAGES = {'wide.png': (50, 75), 'high.png': (80, 40)}


def make_model(folder, name):
    torch.manual_seed(1)
    return build(Config.fromfile(folder / f'{name}.py'), device='cpu').eval()


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with configs, images, and checkpoints whose heads are not all alike."""
    folder = tmp_path_factory.mktemp('work')
    for name, text in CONFIGS.items():
        (folder / f'{name}.py').write_text(text)
    (folder / 'images.txt').write_text('high.png\nwide.png\n')
    rng = np.random.default_rng(0)
    for name, size in IMAGES.items():
        cv2.imwrite(str(folder / name), rng.integers(0, 255, (*size, 3)))
    for name in ('hard', 'soft'):
        model = make_model(folder, name)
        for layer in mask_layers(model.backbone).values():
            nn.init.normal_(layer.qkv.weight, std=0.5)
            if layer.alpha is not None:
                nn.init.normal_(layer.alpha_logit)
        torch.save(dict(state_dict=model.state_dict()), folder / f'{name}.pth')
    return folder


@pytest.fixture
def draw(work, monkeypatch, capsys):
    """Runs a tool there: returns csv rows, matplotlib's figure and what was printed."""
    monkeypatch.chdir(work)
    monkeypatch.setenv('COLUMNS', '80')
    figures = []

    def call(name, *args):
        tool = importlib.import_module(f'tools.analysis.{name}')
        for module in (tool, layer_heads):
            if hasattr(module, 'plt'):
                pyplot = Mock(wraps=plt, close=figures.append)
                monkeypatch.setattr(module, 'plt', pyplot)
        tool.main([*map(str, args), '--out', 'out/picture.png'])
        plt.close(figures[-1])
        picture = cv2.imread('out/picture.png')
        assert picture.shape[0] > 150 and picture.shape[1] > 300 and picture.std() > 20
        with Path('out/picture.csv').open() as file:
            rows = list(csv.DictReader(file))
        return rows, figures[-1], capsys.readouterr().out

    return call


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def loaded(work, name):
    model = make_model(work, name)
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


def test_locality_is_that_of_the_checkpoint_averaged_over_images(draw, work):
    rows, figure, printed = draw(
        'draw_attention_locality', 'hard.py', *IMAGES, '--checkpoint', 'hard.pth'
    )
    expected = attention_locality(loaded(work, 'hard'), inputs(work))
    scores = [float(row['locality']) for row in rows]
    np.testing.assert_allclose(scores, expected.flatten(), rtol=1e-4)
    places = [(int(row['layer']), int(row['head'])) for row in rows]
    assert places == [(i, h) for i in range(3) for h in range(3)]
    assert [row['mask'] for row in rows] == ['hard', 'hard', '', '', 'hard', *[''] * 4]
    assert {row['name'] for row in rows} == {f'blocks.{i}.attn' for i in range(3)}
    image = figure.axes[0].images[0]
    np.testing.assert_allclose(image.get_array().T, expected, rtol=1e-4)
    assert image.get_clim() == (0, 1)
    frames = [
        tuple(round(p + 0.46) for p in f.get_xy()) for f in figure.axes[0].patches
    ]
    assert frames == [(0, 0), (0, 1), (1, 1)]  # layer and head
    assert f'{expected[0, 0]:.3f}* │' in printed and 'out/picture.csv' in printed
    assert f'{expected[2, 0]:.3f}  │' in printed
    words = texts(figure)
    assert f'{expected[2, 1]:.2f}' in words
    assert 'Attention locality score, 2 images\nhard, hard.pth' in words


def test_locality_of_a_wider_neighborhood(draw, work):
    rows, _, _ = draw(
        'draw_attention_locality', 'hard.py', 'wide.png', '--checkpoint', 'hard.pth',
        '--kernel-size', 5,
    )  # fmt: skip
    scores = [float(row['locality']) for row in rows]
    expected = attention_locality(loaded(work, 'hard'), inputs(work)[:1], 5)
    np.testing.assert_allclose(scores, expected.flatten(), rtol=1e-4)


@pytest.mark.parametrize(
    'name, heads',
    [('random', 3 * [3]), ('timm', 2 * [3])],
)
def test_locality_of_other_models(draw, name, heads):
    rows, _, _ = draw('draw_attention_locality', f'{name}.py', 'wide.png')
    layers = [int(row['layer']) for row in rows]
    assert [layers.count(i) for i in range(max(layers) + 1)] == heads
    assert all(0.1 < float(row['locality']) < 0.6 for row in rows)  # 6.8 of 25 patches


def test_locality_of_a_detectors_pyramid(draw, work):
    rows, figure, printed = draw('draw_attention_locality', 'detector.py', 'wide.png')
    assert all(f'{float(row["locality"]):.3f}' in printed for row in rows)
    layers = mask_layers(make_model(work, 'detector').backbone)
    assert len(rows) == sum(layer.num_heads for layer in layers.values())
    missing = np.ma.getmaskarray(
        np.ma.masked_invalid(figure.axes[0].images[0].get_array())
    )
    most = max(layer.num_heads for layer in layers.values())
    assert missing.sum() == most * len(layers) - len(rows) > 0


def test_alphas_are_those_of_the_checkpoint(draw, work):
    rows, figure, printed = draw(
        'draw_mask_alphas', 'soft.py', '--checkpoint', 'soft.pth'
    )
    layers = mask_layers(loaded(work, 'soft'))
    expected = [(name, layer.alpha) for name, layer in layers.items()][:7]
    alphas = np.array([float(row['alpha']) for row in rows]).reshape(7, 3)
    np.testing.assert_allclose(
        alphas, torch.stack([alpha for _, alpha in expected]).detach(), rtol=1e-4
    )
    assert [row['name'] for row in rows[::3]] == [name for name, _ in expected]
    assert {row['mask'] for row in rows} == {'soft'}
    assert f'{alphas[2, 1]:.2f}' in texts(figure)
    assert f'{alphas[6, 2]:.3f}* │' in printed
    drawn = figure.axes[0].images[0].get_array()
    assert drawn.shape == (3, 8) and np.isnan(np.ma.filled(drawn, np.nan)[:, 7]).all()


@pytest.mark.parametrize('last', [None, 2])
def test_similarity_is_that_of_the_checkpoint_averaged_over_images(draw, work, last):
    options = [] if last is None else ['--last', last]
    rows, figure, printed = draw(
        'draw_layer_similarity', 'hard.py', *IMAGES, '--checkpoint', 'hard.pth',
        *options,
    )  # fmt: skip
    expected = layer_similarity(loaded(work, 'hard'), inputs(work))
    for row in rows:
        i, j, head = (int(row[key]) for key in ('layer', 'other', 'head'))
        value = expected[i, j, head].item()
        assert float(row['similarity']) == pytest.approx(value, rel=1e-4)
    assert len(rows) == 3 * 6
    panels = [axis for axis in figure.axes if axis.get_label() != '<colorbar>']
    for head, axis in enumerate(panels):
        image = axis.images[0]
        np.testing.assert_allclose(image.get_array(), expected[..., head], rtol=1e-4)
        assert image.get_clim() == (0, 1) and image.origin == 'lower'
    pairs = [(1, 2)] if last else [(0, 1), (0, 2), (1, 2)]
    means = torch.stack([expected[pair] for pair in pairs]).mean(0)
    assert f'head 1 (last {last or 3}: {means[1]:.2f})' in texts(figure)
    assert f'mean of the last {last or 3} layers' in printed
    assert f'{means[2]:.3f}' in printed and f'{means.mean():.3f}' in printed


def test_diversity_of_heads_is_that_of_the_checkpoints(draw, work):
    rows, _, printed = draw(
        'draw_head_diversity', 'hard.py', *IMAGES, '--checkpoint', 'hard.pth'
    )
    Path('out/picture.csv').rename('hard.csv')
    expected = head_diversity(loaded(work, 'hard'), inputs(work))
    for row, layer in zip(rows, expected, strict=True):
        assert (row['layer'], row['num_heads']) == (layer.layer, '3')
        for key in ('head_variance', 'map_variance', 'similarity'):
            assert float(row[key]) == pytest.approx(getattr(layer, key), rel=1e-4)
        assert f'{layer.similarity:.3f}' in printed
    assert {row['model'] for row in rows} == {'hard, hard.pth'}
    more, figure, _ = draw(
        'draw_head_diversity', 'hard.py', 'wide.png', '--label', 'more heads',
        '--with', 'hard.csv', '--cfg-options', 'model.backbone.arch.num_heads=4',
    )  # fmt: skip
    assert {row['model'] for row in more} == {'more heads'}
    variances, similarities = figure.axes
    assert {'more heads', 'hard, hard.pth'} <= set(texts(figure))
    heads, means = variances.lines[0].get_data()
    assert list(heads) == [3] and list(variances.lines[1].get_xdata()) == [4]
    mean = np.mean([layer.head_variance for layer in expected])
    np.testing.assert_allclose(means, mean, rtol=1e-4)
    drawn = similarities.lines[0].get_ydata()
    np.testing.assert_allclose(drawn, [h.similarity for h in expected], rtol=1e-4)


def test_samples_of_the_test_data_set_are_its_first_images(draw, work):
    weights = '--checkpoint', 'hard.pth'
    rows, *_ = draw('draw_layer_similarity', 'folder.py', '--samples', 1, *weights)
    expected, *_ = draw('draw_layer_similarity', 'hard.py', 'high.png', *weights)
    assert [r['similarity'] for r in rows] == [r['similarity'] for r in expected]


WRONG = {
    'no-csv': (
        ['draw_head_diversity', 'hard.py', 'wide.png', '--with', 'no.csv'],
        '--with must be a csv file of this tool, got no.csv',
    ),
    'other-csv': (
        ['draw_head_diversity', 'hard.py', 'wide.png', '--with', 'hard.py'],
        r"hard.py must have the columns \['model', 'layer'",
    ),
    'no-alphas': (['draw_mask_alphas', 'hard.py'], 'MaiT has no soft masks'),
    'last': (
        ['draw_layer_similarity', 'hard.py', 'wide.png', '--last', 4],
        '--last must be between 2 and 3 layers, got 4',
    ),
    'pyramid': (
        ['draw_layer_similarity', 'detector.py', 'wide.png'],
        'layers that are compared must be alike',
    ),
    'no-images': (
        ['draw_head_diversity', 'hard.py'],
        'either image files or --samples',
    ),
    'images-and-samples': (
        ['draw_layer_similarity', 'hard.py', 'wide.png', '--samples', 1],
        'either image files or --samples',
    ),
    'samples': (
        ['draw_attention_locality', 'folder.py', '--samples', 3],
        '--samples must be between 1 and 2, the images of test_dataloader',
    ),
    'image': (
        ['draw_attention_locality', 'hard.py', 'wide.png', 'no.png'],
        'no readable image at no.png',
    ),
    'kernel-size': (
        ['draw_attention_locality', 'hard.py', 'wide.png', '--kernel-size', 4],
        'kernel_size must be odd, got 4',
    ),
    'checkpoint': (
        ['draw_mask_alphas', 'soft.py', '--checkpoint', 'hard.pth'],
        'hard.pth is not loaded: it does not match the model exactly',
    ),
}


@pytest.mark.parametrize('args, message', WRONG.values(), ids=[*WRONG])
def test_what_is_wrong_is_named(draw, args, message):
    with pytest.raises(ValueError, match=message):
        draw(*args)
