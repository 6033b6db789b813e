"""Compare what a clicked pixel attends to with the functions that read it."""

import numpy as np
import pytest
import small_deformable_detr
import torch
from mmengine.dataset import pseudo_collate
from predictor_models import classifier, detector, noise, segmentor
from torch.testing import assert_close

from mmattn.analysis import (
    AttentionKernels,
    MultiScalePoints,
    SamplingPoints,
    attention_kernels,
    multi_scale_points,
    sampling_points,
)
from mmattn.apis import Predictor
from mmattn.web.inside import Inside, look_inside, panels

ARCH = dict(embed_dims=(8, 8, 16, 16), depths=(2, 1, 1, 1))
ARCH |= dict(num_heads=(2, 1, 2, 4), num_groups=(2, 1, 1, 2))
DAT = dict(type='mmattn.DATPlusPlus', arch=ARCH, img_size=64)


def test_the_layers_of_a_pixel():
    cfg = segmentor()
    cfg.merge_from_dict(dict(model=dict(backbone=dict(_delete_=True, **DAT))))
    cfg.model.decode_head.in_channels = 16
    predictor = Predictor(cfg, 'random', 'cpu')
    image = noise(60, 80)
    found = look_inside(predictor, image, 30, 20)
    # The pipeline resizes by 0.8, and the preprocessor pads to 64 x 64.
    assert found.size == (48, 64) and found.picture.shape == (64, 64, 3)
    place = (30.5 * 0.8, 20.5 * 0.8)
    model = predictor.model.model
    batch = pseudo_collate([predictor.model.prepare(image)])
    tensor = model.data_preprocessor(batch, False)['inputs']
    kernels = attention_kernels(model.backbone, tensor, [place])
    points = sampling_points(model.backbone, tensor, place)
    assert len(points) == 2 and kernels
    assert len(found.layers) == len(kernels) + len(points)
    for name, layer in zip(found.layers, kernels + points, strict=True):
        other = found.layers[name]
        assert type(other) is type(layer) and other.layer == layer.layer
        if isinstance(layer, SamplingPoints):
            assert ' points of ' in name and other.query == pytest.approx(layer.query)
            assert_close(other.points, layer.points)
            assert_close(other.weights, layer.weights)
        else:
            assert other.cells == layer.cells
            assert_close(other.kernels, layer.kernels)
        drawn = panels(found, name)
        weights = layer.weights if ' points of ' in name else layer.kernels[0]
        assert len(drawn) == len(weights)
        assert all(picture.shape == (360, 480, 3) for picture, _ in drawn)
        assert found.legend(name)
    with pytest.raises(ValueError, match='the layer must be one of .*, got .none'):
        panels(found, 'none')


def test_the_layers_of_a_deformable_detr():
    cfg = detector()
    cfg.model = small_deformable_detr.config()
    cfg.model.data_preprocessor = dict(type='DetDataPreprocessor', pad_size_divisor=32)
    predictor = Predictor(cfg, 'random', 'cpu')
    image = noise(60, 80)
    found = look_inside(predictor, image, 30, 20)
    model = predictor.model.model
    expected = multi_scale_points(
        model, lambda: predictor(image), (128, 160), (30.5 * 2, 20.5 * 2)
    )
    assert len(expected) == len(found.layers) == 4
    for name, layer in zip(found.layers, expected, strict=True):
        assert isinstance(found.layers[name], MultiScalePoints)
        assert_close(found.layers[name].points, layer.points)
        assert 'orange 16 x 20, sky blue 8 x 10' in found.legend(name)
        drawn = panels(found, name)
        assert [text.partition(':')[0] for _, text in drawn] == [
            f'head {i}' for i in range(1, 5)
        ]
        assert all(picture.shape == (360, 480, 3) for picture, _ in drawn)


def test_heads_of_a_layer_have_one_scale():
    """A nearly uniform head looks uniform, unless it is scaled by its own largest."""
    kernels = torch.ones(1, 2, 8, 8)
    kernels[0, 0, 0, 0], kernels[0, 1, 0, 0] = 0.5, 20
    picture = np.zeros((64, 64, 3), np.uint8)
    both, alone = (
        Inside({'a': AttentionKernels('a', each, [(7, 7)])}, picture, (64, 64))
        for each in (kernels, kernels[:, :1])
    )
    (even, text), (_, other) = panels(both, 'a')
    assert (text, other) == ('head 1: 1.01x', 'head 2: 15.4x')
    assert '>15.4 x the mean<' in both.bar('a') and '>2 x the mean<' in alone.bar('a')
    (own, _), _ = panels(both, 'a', own=True)
    assert '>largest of each<' in both.bar('a', own=True)
    place = 200, 200  # of a usual weight
    bright = [int(each[place].sum()) for each in (even, panels(alone, 'a')[0][0], own)]
    assert bright[0] < 100 < bright[1] < 350 < bright[2]


def test_pixels_that_the_pipeline_crops_away_are_named():
    predictor = Predictor(classifier(), 'random', 'cpu')
    image = noise(40, 100)  # its middle 32 x 32 pixels are seen
    found = look_inside(predictor, image, 20, 50)
    np.testing.assert_array_equal(found.picture, image[4:36, 34:66])
    with pytest.raises(ValueError, match='query 20 2 is not in the middle 32x32'):
        look_inside(predictor, image, 20, 2)


def test_models_without_attention_and_exported_files_are_named():
    cfg = segmentor()
    cfg.model.backbone = dict(type='mmseg.ResNetV1c', depth=18, base_channels=8)
    predictor = Predictor(cfg, 'random', 'cpu')
    with pytest.raises(ValueError, match='no attention .* no MSDeformAttent'):
        look_inside(predictor, noise(40, 40), 9, 9)
    predictor.model = None
    with pytest.raises(ValueError, match='is an exported file, whose layers'):
        look_inside(predictor, noise(40, 40), 9, 9)
