"""Tools that draw what happens inside a model: each shows what the library says."""

import csv
import importlib
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.collections import PathCollection
from matplotlib.text import Text
from mmengine.config import Config
from torch import nn

from mmattn.analysis import (
    attention_kernels,
    attention_locality,
    feature_norms,
    head_diversity,
    image_in_model,
    layer_heads,
    layer_similarity,
    mask_layers,
    sampling_points,
)
from mmattn.analysis.flops import build

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
def draw(work, monkeypatch, capsys):
    """Runs a tool there: returns matplotlib's figure, csv rows and what was printed."""
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
        assert min(picture.shape[:2]) > 150 and picture.std() > 20
        rows = []
        if (path := Path('out/picture.csv')).exists():
            rows = list(csv.DictReader(path.read_text().splitlines()))
        return figures[-1], rows, capsys.readouterr().out

    return call


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def panels(figure):
    axes = [axis for axis in figure.axes if axis.get_label() != '<colorbar>']
    return [image for axis in axes for image in axis.images]


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
    figure, rows, printed = draw('draw_attention_locality', *HARD_MODEL)
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
    corners = [frame.get_xy() for frame in figure.axes[0].patches]
    frames = [tuple(round(place + 0.46) for place in corner) for corner in corners]
    assert frames == [(0, 0), (0, 1), (1, 1)]  # layer and head
    assert (
        f'{expected[0, 0]:.3f}* │' in printed and f'{expected[2, 0]:.3f}  │' in printed
    )
    assert 'Attention locality score, 2 images\nhard, hard.pth' in texts(figure)


def test_alphas_are_those_of_the_checkpoint(draw, work):
    figure, rows, printed = draw(
        'draw_mask_alphas', 'soft.py', '--checkpoint', 'soft.pth'
    )
    layers = [*mask_layers(loaded(work, 'soft')).items()][:7]
    alphas = np.array([float(row['alpha']) for row in rows]).reshape(7, 3)
    expected = torch.stack([layer.alpha for _, layer in layers]).detach()
    np.testing.assert_allclose(alphas, expected, rtol=1e-4)
    assert [row['name'] for row in rows[::3]] == [name for name, _ in layers]
    assert {row['mask'] for row in rows} == {'soft'}
    assert f'{alphas[6, 2]:.3f}* │' in printed
    drawn = figure.axes[0].images[0].get_array()
    assert drawn.shape == (3, 8) and np.isnan(np.ma.filled(drawn, np.nan)[:, 7]).all()


def test_similarity_is_that_of_the_checkpoint_averaged_over_images(draw, work):
    figure, rows, printed = draw('draw_layer_similarity', *HARD_MODEL, '--last', 2)
    expected = layer_similarity(loaded(work, 'hard'), inputs(work))
    for row in rows:
        place = tuple(int(row[key]) for key in ('layer', 'other', 'head'))
        assert float(row['similarity']) == pytest.approx(expected[place].item(), 1e-4)
    assert len(rows) == 3 * 6
    for head, image in enumerate(panels(figure)):
        np.testing.assert_allclose(image.get_array(), expected[..., head], rtol=1e-4)
    assert f'head 1 (last 2: {expected[1, 2, 1]:.2f})' in texts(figure)
    assert f'{expected[1, 2].mean():.3f}' in printed


def test_diversity_of_heads_is_that_of_the_checkpoints(draw, work):
    _, rows, _ = draw('draw_head_diversity', *HARD_MODEL)
    Path('out/picture.csv').rename('hard.csv')
    expected = head_diversity(loaded(work, 'hard'), inputs(work))
    for row, layer in zip(rows, expected, strict=True):
        assert (row['layer'], row['num_heads']) == (layer.layer, '3')
        for key in ('head_variance', 'map_variance', 'similarity'):
            assert float(row[key]) == pytest.approx(getattr(layer, key), rel=1e-4)
    figure, rows, _ = draw(
        'draw_head_diversity', 'hard.py', 'wide.png', '--label', 'more heads',
        '--with', 'hard.csv', '--cfg-options', 'model.backbone.arch.num_heads=4',
    )  # fmt: skip
    assert {row['model'] for row in rows} == {'more heads'}
    assert {'more heads', 'hard, hard.pth'} <= set(texts(figure))
    variances, similarities = figure.axes
    heads, means = variances.lines[0].get_data()
    assert list(heads) == [3] and list(variances.lines[1].get_xdata()) == [4]
    mean = np.mean([layer.head_variance for layer in expected])
    np.testing.assert_allclose(means, mean, rtol=1e-4)
    drawn = similarities.lines[0].get_ydata()
    np.testing.assert_allclose(drawn, [h.similarity for h in expected], rtol=1e-4)


def test_samples_of_the_test_data_set_are_its_first_images(draw, work):
    weights = '--checkpoint', 'hard.pth'
    _, rows, _ = draw('draw_layer_similarity', 'folder.py', '--samples', 1, *weights)
    _, expected, _ = draw('draw_layer_similarity', 'hard.py', 'high.png', *weights)
    assert [r['similarity'] for r in rows] == [r['similarity'] for r in expected]


def models_of(*options):
    parser = image_in_model.make_parser('', '')
    return image_in_model.load_models(parser.parse_args(options))


def test_kernels_of_queries_beside_another_models(draw):
    """Every panel holds what the library says, of the layer and head that it names."""
    queries, heads = [(10, 20), (30, 45)], (1, 0)
    options = (
        'lisa.py', 'photo.png', '--checkpoint', 'lisa.pth', '--compare',
        'plain_lisa.py', '--compare-cfg-options', 'model.backbone.mixer=self_attention',
    )  # fmt: skip
    figure, *_ = draw(
        'draw_attention_kernels', *options, '--query', 10, 20, '--query', 30, 45,
        '--layers', -1, '--heads', *heads,
    )  # fmt: skip
    words = texts(figure)
    other = 'plain_lisa, model.backbone.mixer=self_attention, random weights'
    assert words.count('lisa, lisa.pth') == words.count(other) == 2
    assert {'query (10, 20)', 'query (30, 45)', '-max'} < set(words)
    assert words.count('head 0') == words.count('head 1') == 4
    models, expected = models_of(*options), []
    found = [
        attention_kernels(m.backbone, m.inputs, [m.place(*q) for q in queries])[-1]
        for m in models
    ]
    for i in range(len(queries)):
        rows = [kernels.kernels[i, h].numpy() for kernels in found for h in heads]
        expected += [models[0].picture, *(row / abs(row).max() for row in rows)]
    drawn = panels(figure)
    for image, values in zip(drawn, expected, strict=True):
        np.testing.assert_allclose(image.get_array(), values, rtol=1e-4, atol=1e-5)
    assert [image.get_clim() for image in drawn[1:5]] == 2 * [(-1, 1)] + 2 * [(0, 1)]
    means = drawn[0].get_array()[:43].mean((0, 1))
    assert means[0] > 100 and means[1] > 100 and means[2] == 0
    # (10.5, 20.5) of 60 x 90 pixels is (7.5, 14.6) of 43 x 64: row 0 and column 1 on
    # the grid of 8 x 8 cells of 8 pixels, which the padded picture has, too.
    for image, box in ((drawn[1], (1, 0, 1, 1)), (drawn[0], (8, 0, 8, 8))):
        (red,) = (p for p in image.axes.patches if p.get_edgecolor() == (1, 0, 0, 1))
        corner = (place + 0.5 for place in red.get_xy())
        assert (*corner, red.get_width(), red.get_height()) == box


def test_chosen_norms_are_drawn_beside_another_models(draw):
    figure, *_ = draw(
        'draw_feature_norms', 'lisa.py', 'photo.png', '--layers', 2, 0, '--compare',
        'plain_lisa.py',
    )  # fmt: skip
    blocks = [word for word in texts(figure) if 'blocks.' in word]
    assert blocks[:2] == ['2: stages.1.blocks.1', '0: stages.0.blocks.0']
    assert blocks[2:] == ['2: blocks.2', '0: blocks.0']
    (model,) = models_of('lisa.py', 'photo.png')
    norms = feature_norms(model.backbone, model.inputs)
    drawn = [image.get_array() for image in panels(figure)]
    assert len(drawn) == 6
    np.testing.assert_array_equal(drawn[1], norms['stages.1.blocks.1'])
    np.testing.assert_array_equal(drawn[2], norms['blocks.0'])


def test_a_checkpoint_that_matches_in_part_is_loaded_when_asked(draw):
    figure, *_ = draw(
        'draw_feature_norms', 'lisa.py', 'photo.png', '--checkpoint', 'lisa.pth',
        '--allow-partial-load', '--cfg-options',
        'model.roi_head.bbox_head.num_classes=3',
    )  # fmt: skip
    name = 'lisa, model.roi_head.bbox_head.num_classes=3, lisa.pth'
    assert name in texts(figure)


@pytest.mark.parametrize('query', [None, (20, 5)])
def test_sampling_points_of_chosen_groups(draw, monkeypatch, query):
    """Places and areas equal the library's; a star marks the query's cell."""
    from tools.analysis import draw_sampling_points as tool

    found = []

    def watched(*args):
        found.extend(sampling_points(*args))
        return found

    monkeypatch.setattr(tool, 'sampling_points', watched)
    options = () if query is None else ('--query', *query)
    figure, *_ = draw('draw_sampling_points', 'dat.py', 'wide.png', *options)
    drawn = {axis.get_title(): axis for axis in figure.axes}
    titles = ['0: stages.2.blocks.1, group 0', '1: stages.3.blocks.0, group 0']
    titles += ['1: stages.3.blocks.0, group 1', '2: stages.3.blocks.1, group 0']
    assert set(titles) < set(drawn)
    for title in titles:
        points, group = found[int(title[0])], int(title[-1])
        kinds = [c for c in drawn[title].collections if isinstance(c, PathCollection)]
        grid, places, *star = (c.get_offsets()[:, ::-1] + 0.5 for c in kinds)
        np.testing.assert_allclose(grid, points.references, rtol=1e-5)
        np.testing.assert_allclose(places, points.points[group], rtol=1e-5)
        areas = points.weights[group] / points.weights[group].max()
        np.testing.assert_allclose(kinds[1].get_sizes(), 150 * areas, rtol=1e-6)
        if query is not None:
            np.testing.assert_allclose(star, [[points.query]])


@pytest.mark.slow
def test_box_gradients_have_a_row_for_each_detection(draw):
    config = 'detr.py', "_base_ = 'mmattn::demo/deformable_detr_ivit_n_hela.py'"
    Path(config[0]).write_text(config[1])
    figure, *_ = draw('draw_box_gradients', 'detr.py', 'photo.png', '--count', 2)
    assert len(panels(figure)) >= 2


IMAGE = 'hard.py', 'wide.png'
WRONG = {
    'draw_head_diversity': [
        ([*IMAGE, '--with', 'hard.py'], r"hard.py must have the columns \['model', "),
        (['hard.py'], 'either image files or --samples'),
    ],
    'draw_mask_alphas': [
        (['hard.py'], 'MaiT has no soft masks'),
        (
            ['soft.py', '--checkpoint', 'hard.pth'],
            'it does not match the model exactly',
        ),
    ],
    'draw_layer_similarity': [
        ([*IMAGE, '--last', 4], '--last must be between 2 and 3 layers, got 4'),
        ([*IMAGE, '--samples', 1], 'either image files or --samples'),
    ],
    'draw_attention_locality': [
        (
            ['folder.py', '--samples', 3],
            '--samples must be between 1 and 2, the images',
        ),
        ([*IMAGE, 'no.png'], 'no readable image at no.png'),
    ],
    'draw_attention_kernels': [
        (['lisa.py', 'photo.png', '--layers', 9], r'must be in \[-2, 1\], got 9'),
        (['lisa.py', 'photo.png', '--query', 60, 3], 'query 60 3 is outside the 60x90'),
        (['backbone.py', 'photo.png'], 'backbone.py must be one of mmdet'),
    ],
    'draw_sampling_points': [(IMAGE, 'no DeformableAttention')],
}


@pytest.mark.parametrize(
    'tool, args, message', [(t, *case) for t, cases in WRONG.items() for case in cases]
)
def test_what_is_wrong_is_named(draw, tool, args, message):
    with pytest.raises(ValueError, match=message):
        draw(tool, *args)


def test_options_of_the_other_model_need_one(draw, capsys):
    with pytest.raises(SystemExit):
        draw('draw_feature_norms', *IMAGE, '--compare-checkpoint', 'a')
    assert '--compare-checkpoint needs --compare' in capsys.readouterr().err
