"""Draw pictures whose colors, texts and legends can be read."""

import numpy as np
import pytest
import tifffile
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from PIL import Image

from mmattn.images import NoImageError, shown
from mmattn.images.draw import class_colors, draw_labels, save_panels
from mmattn.images.draw.overlays import open_picture
from mmattn.images.draw.style import seen_colors
from mmattn.results.panels import panel
from mmattn.results.samples import truth_of


@pytest.mark.parametrize('count, least', [(8, 0.07), (20, 0.06), (150, 0.02)])
def test_colors_differ_for_all_eyes(count, least):
    """A distance of 0.02 in OKLab can just be seen."""
    seen = seen_colors(class_colors(count))
    apart = np.linalg.norm(seen[:, :, None] - seen[:, None], axis=3)
    assert apart[:, ~np.eye(count, dtype=bool)].min() > least
    assert class_colors(300)[:count] == class_colors(count)


def test_a_legend_goes_on_in_a_second_column():
    labels = np.arange(40, dtype=np.uint8).repeat(10)[None].repeat(100, 0)
    palette = class_colors(40)
    legend = [(f'c{i}', color) for i, color in enumerate(palette)]
    drawn = draw_labels(np.zeros((100, 400, 3), np.uint8), labels, palette, 0.0, legend)
    found = {tuple(color) for color in drawn.reshape(-1, 3).tolist()}
    assert found >= set(map(tuple, palette))
    narrow = np.zeros((100, 60, 3), np.uint8)
    drawn = draw_labels(narrow, labels[:, :60], palette, 0, legend)
    found = {tuple(color) for color in drawn.reshape(-1, 3).tolist()}
    assert len(found & set(map(tuple, palette))) < 7


def test_annotations_are_drawn_as_predictions():
    image = np.zeros((64, 64, 3), np.uint8)
    masks = np.zeros((2, 64, 64), np.uint8)
    masks[0, 12:20, 12:20] = masks[1, 36:52, 36:52] = 1
    given = InstanceData(
        bboxes=torch.tensor([[8.0, 8, 24, 24], [32, 32, 56, 56]]),
        labels=torch.tensor([1, 1]),
        masks=BitmapMasks(masks, 64, 64),
    )
    sample = DetDataSample(gt_instances=given)
    drawn, legend = panel(truth_of(sample, ['cat', 'dog'], None, (64, 64)), image)
    color = class_colors(2)[1]
    assert legend == [('dog: 2', color)]
    assert drawn[8, 12].tolist() == drawn[32, 40].tolist() == color
    assert drawn[15, 15].any() and not drawn[28, 28].any()
    labels = torch.tensor([[[0, 1], [1, 255]]])
    sample = SegDataSample(gt_sem_seg=PixelData(data=labels))
    drawn, legend = panel(truth_of(sample, ['cat', 'dog'], None, (2, 2)), image[:2, :2])
    assert [name for name, _ in legend] == ['dog', 'cat']
    assert drawn[0, 0].any() and not drawn[1, 1].any()
    with pytest.raises(ValueError, match='no annotations'):
        truth_of(SegDataSample(), None, None, (2, 2))


def test_panels_are_as_high_as_their_pictures(tmp_path):
    sizes = []
    for height in (30, 60, 90):
        picture = np.zeros((height, 60, 3), np.uint8)
        save_panels([[(picture, ())]], ['a'], tmp_path / 'a.png')
        with Image.open(tmp_path / 'a.png') as written:
            sizes.append(written.height)
    assert sizes[0] < 0.7 * sizes[1] and abs(sizes[1] - sizes[2]) < 3


def test_arrays_of_any_channels_are_drawn_on():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 200, (20, 30, 5), np.uint8)
    assert np.array_equal(open_picture(pixels[..., :4], None), pixels[..., :3])
    assert np.array_equal(open_picture(pixels[..., 0], None)[..., 2], pixels[..., 0])
    for channels in range(1, 6):
        deep = pixels[..., :channels].astype(np.uint16) * 9
        picture = open_picture(deep, None)
        assert np.array_equal(picture, shown(deep)) and picture.shape == (20, 30, 3)


def test_a_file_of_many_channels_is_drawn_on(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 9000, (20, 30, 5), np.uint16)
    path = str(tmp_path / 'a.tif')
    kinds = dict(photometric='minisblack', planarconfig='contig')
    tifffile.imwrite(path, pixels, **kinds)
    assert np.array_equal(open_picture(None, path), shown(pixels))
    broken = tmp_path / 'a.png'
    broken.write_text('no image')
    with pytest.raises(NoImageError, match='cannot be read as an image'):
        open_picture(None, str(broken))
