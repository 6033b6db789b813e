"""The tool that draws the points of deformable attention, against the library's."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

for name in ('mmpretrain', 'cv2', 'matplotlib'):
    pytest.importorskip(name)

import cv2  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.collections import LineCollection, PathCollection  # noqa: E402
from matplotlib.colors import to_rgba  # noqa: E402
from matplotlib.text import Text  # noqa: E402

from mmattn.analysis import sampling_points  # noqa: E402
from tools.analysis import draw_sampling_points as tool  # noqa: E402

ROOT = Path(__file__).parents[2]

CONFIG = """
_base_ = 'mmattn::classification/dat_t_300e_in1k.py'
model = dict(
    backbone=dict(_delete_=True, type='mmattn.{type}', img_size=64, {options}),
    head=dict(in_channels=16))
test_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(96, 64)),
    dict(type='PackInputs')]))
"""
ARCH = """arch=dict(
    embed_dims=(8, 8, 16, 16), depths=(1, 1, 2, 2), num_heads=(1, 1, 2, 4),
    num_groups=({groups}, {groups}, 1, 2)), out_indices=3"""
CONFIGS = {
    'dat': dict(type='DAT', options=ARCH.format(groups=0)),
    'datpp': dict(type='DATPlusPlus', options=ARCH.format(groups=1)),
    'vit': dict(type='ViT', options="arch='tiny'"),
}


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A folder with configs and an image of half the size that models are given."""
    folder = tmp_path_factory.mktemp('work')
    for name, values in CONFIGS.items():
        (folder / f'{name}.py').write_text(CONFIG.format(**values))
    image = np.random.default_rng(0).integers(0, 255, (32, 48, 3))
    cv2.imwrite(str(folder / 'image.png'), image)
    return folder


@pytest.fixture
def draw(work, monkeypatch):
    """Runs the tool; returns matplotlib's picture, and what the library found."""
    monkeypatch.chdir(work)
    figures, found = [], []

    def watched(*args):
        found.extend(sampling_points(*args))
        return found

    def call(*args):
        monkeypatch.setattr(tool, 'plt', Mock(wraps=plt, close=figures.append))
        monkeypatch.setattr(tool, 'sampling_points', watched)
        tool.main([*map(str, args), '--out', 'out/picture.png'])
        plt.close(figures[-1])
        return figures[-1], found

    return call


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def scattered(axis):
    """Rows and columns in pixels, and areas, of each kind of mark of a panel."""
    marks = [c for c in axis.collections if isinstance(c, PathCollection)]
    return [(m.get_offsets()[:, ::-1] + 0.5, m.get_sizes()) for m in marks]


def color_of(axis):
    """Return the color of a panel's points, which is that of its lines."""
    (lines,) = (c for c in axis.collections if isinstance(c, LineCollection))
    _, points, *_ = (c for c in axis.collections if isinstance(c, PathCollection))
    assert np.array_equal(lines.get_color(), points.get_facecolor())
    starts_and_ends = [
        x + 0.5 for x in np.array(lines.get_segments())[..., ::-1].swapaxes(0, 1)
    ]
    for marks, expected in zip(scattered(axis), starts_and_ends, strict=False):
        np.testing.assert_allclose(marks[0], expected)
    return tuple(points.get_facecolor()[0])


def test_points_of_all_layers(draw):
    figure, found = draw('datpp.py', 'image.png')
    assert cv2.imread('out/picture.png').std() > 20
    words = texts(figure)
    assert 'datpp, random weights' in words
    titles = ['0: stages.2.blocks.1, group 0', '1: stages.3.blocks.0, group 0']
    titles += ['1: stages.3.blocks.0, group 1', '2: stages.3.blocks.1, group 0']
    assert set(titles) < set(words)
    panels = {axis.get_title(): axis for axis in figure.axes}
    for title in titles:
        points = found[int(title[0])]
        group = int(title[-1])
        (grid, _), (places, areas) = scattered(panels[title])
        np.testing.assert_allclose(grid, points.references, rtol=1e-5)
        np.testing.assert_allclose(places, points.points[group], rtol=1e-5)
        weights = points.weights[group]
        np.testing.assert_allclose(areas, 150 * weights / weights.max())
        most = f'max {weights.max() / weights.mean():.3g} x mean'
        assert panels[title].get_xlabel() == most
        assert color_of(panels[title]) == to_rgba(f'C{group}')
    assert {'uniform grid', 'sampled point, area: attention'} < set(words)


def test_points_of_a_query(draw):
    """Its star is in the middle of its cell, at twice the place in the file."""
    options = ('--query', 20, 5, '--layers', -1, '--groups', 1)
    figure, (*_, points) = draw('dat.py', 'image.png', *options)
    (panel,) = (axis for axis in figure.axes if 'group' in axis.get_title())
    assert panel.get_title() == '1: stages.3.blocks.1, group 1'
    _, (places, areas), (star, _) = scattered(panel)
    np.testing.assert_allclose(places, points.points[1], rtol=1e-5)
    weights = points.weights[1]
    np.testing.assert_allclose(areas / areas.max(), weights / weights.max(), rtol=1e-6)
    assert 'query 20 5' in texts(figure)
    np.testing.assert_allclose(star, [(48, 16)])
    assert points.query == (48, 16)


@pytest.mark.parametrize(
    'args, message',
    [
        (('vit.py', 'image.png'), 'no DeformableAttention'),
        (('dat.py', 'image.png', '--query', 32, 0), 'outside the 32x48 image'),
        (('dat.py', 'image.png', '--layers', 2), r'\[-2, 1\], got 2'),
        (('dat.py', 'image.png', '--layers', 0, '--groups', 1), r'\[-1, 0\], got 1'),
        (('dat.py', 'no.png'), 'no readable image at no.png'),
    ],
    ids=['model', 'query', 'layer', 'group', 'image'],
)
def test_what_is_wrong_is_said(draw, args, message):
    with pytest.raises(ValueError, match=message):
        draw(*args)
