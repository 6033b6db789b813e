"""Images prepared for a graph, beside the pipelines of the mm packages."""

import mmpretrain.datasets.transforms
import numpy as np
import pytest
import torch
from mmdet.models.data_preprocessors import DetDataPreprocessor
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DefaultScope
from PIL import Image

from mmattn.export import metadata as metadata_module
from mmattn.export.config_model import image_steps
from mmattn.export.inputs import prepare, stack, target_size
from mmattn.export.metadata import Metadata
from mmattn.images import read_image

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
SCALE = dict(scale=[133, 80], keep_ratio=True, interpolation='bilinear', backend='cv2')
STRETCH = SCALE | dict(keep_ratio=False)
PAD = dict(divisor=32, value=0)  # makes 96 x 160 of 80 x 133
FACTOR = dict(factor=0.61, interpolation='bilinear', backend='cv2')
BICUBIC = dict(interpolation='bicubic', backend='pillow')
EDGE = dict(short_side=64, **BICUBIC)
SQUARE = dict(resize=EDGE, crop=[56, 56], dynamic='size')


def metadata(**settings):
    settings = dict(shape=[96, 160], resize=SCALE, mean=MEAN, std=STD) | settings
    return Metadata('detection', ['image', 'image_size'], [], **settings)


@pytest.fixture(params=[(60, 90), (300, 200), (1, 9)], ids=str)
def file(request, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (*request.param, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'image.png')
    return tmp_path / 'image.png'


def pipeline(scope, *steps):
    with DefaultScope.overwrite_default_scope(scope):
        return Compose([dict(type='LoadImageFromFile'), *steps])


RESIZES = {
    'fit': (dict(scale=(133, 80), keep_ratio=True), SCALE),
    'stretch': (dict(scale=(133, 80), keep_ratio=False), STRETCH),
    'keep size': (dict(scale_factor=1.0, keep_ratio=True), FACTOR | dict(factor=1.0)),
    'factor': (dict(scale_factor=0.61, keep_ratio=True), FACTOR),
}


@pytest.mark.parametrize('step, resize', RESIZES.values(), ids=RESIZES)
def test_detectors_get_the_images_of_mmdet(file, step, resize):
    channel_order = 'rgb' if step['keep_ratio'] else 'bgr'
    steps = pipeline('mmdet', dict(type='Resize', **step), dict(type='PackDetInputs'))
    assert image_steps([dict(type='Resize', **step)])['resize'] == resize
    batch = pseudo_collate([steps(dict(img_path=str(file), img_id=0))])
    preprocessor = DetDataPreprocessor(
        MEAN, STD, bgr_to_rgb=channel_order == 'rgb', pad_size_divisor=32, pad_value=1
    )
    expected = preprocessor(batch)
    meta = expected['data_samples'][0].metainfo
    settings = dict(channel_order=channel_order, resize=resize)
    ours = metadata(dynamic='size', pad=dict(divisor=32, value=1), **settings)
    image = prepare(read_image(file), ours)
    assert image.size == meta['img_shape'] and image.original == meta['ori_shape']
    assert image.scale == meta['scale_factor']
    found = torch.from_numpy(stack([image], ours))
    assert found.shape == expected['inputs'].shape
    levels = (found - expected['inputs']).abs() * torch.tensor(STD).view(3, 1, 1)
    assert levels.max() <= 1.001 and (levels > 0.01).float().mean() < 0.01


def test_classifiers_get_the_images_of_mmpretrain(file):
    steps = pipeline(
        'mmpretrain',
        dict(type='ResizeEdge', scale=64, edge='short', **BICUBIC),
        dict(type='CenterCrop', crop_size=(48, 56)),
        dict(type='PackInputs'),
    )
    expected = steps(dict(img_path=str(file)))['inputs'].numpy()
    ours = metadata(
        dynamic='size', resize=EDGE, crop=[56, 48], mean=[0] * 3, std=[1] * 3
    )
    found = prepare(read_image(file), ours).pixels
    np.testing.assert_array_equal(found, expected[::-1])


@pytest.mark.parametrize(
    'size, settings, expected',
    [
        ((200, 300), {}, ((80, 120), None)),
        ((300, 200), dict(shape=[160, 160]), ((120, 80), None)),
        ((300, 200), {}, ((96, 64), None)),  # to its 96 rows
        ((900, 2), dict(shape=[96, 100]), ((96, 1), None)),
        ((2, 900), dict(shape=[96, 100]), ((1, 100), None)),
        ((50, 70), dict(resize=None), ((50, 70), None)),
        ((500, 700), dict(resize=None), ((96, 134), None)),
        ((50, 70), dict(resize=STRETCH), ((96, 160), None)),
        ((50, 70), dict(resize=STRETCH, dynamic='size'), ((80, 133), None)),
        ((50, 70), dict(resize=STRETCH, pad=PAD), ((80, 133), None)),
        ((50, 70), dict(resize=EDGE, crop=[56, 48]), ((213, 298), (96, 160))),
        ((50, 70), dict(resize=EDGE, crop=[48, 80]), ((128, 179), (96, 160))),
        ((50, 70), dict(resize=EDGE, crop=[90, 133], pad=PAD), ((64, 89), (90, 133))),
        ((70, 50), SQUARE, ((89, 64), (56, 56))),
    ],
    ids=str,
)
def test_images_fit_into_the_graph(size, settings, expected):
    assert target_size(size, metadata(**settings)) == expected


@pytest.mark.parametrize(
    'size, crop', [((9, 8), (8, 8)), ((10, 13), (7, 4)), ((5, 4), (6, 7))], ids=str
)
def test_odd_margins_of_crops_are_split_as_in_mmpretrain(size, crop):
    """Half pixels are rounded to even, on both sides."""
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    step = mmpretrain.datasets.transforms.CenterCrop(crop_size=crop[::-1])
    expected = step(dict(img=image))['img']
    levels = dict(mean=[0.0] * 3, std=[1.0] * 3)
    ours = metadata(dynamic='size', resize=None, crop=[*crop], **levels)
    found = prepare(image, ours).pixels.transpose(1, 2, 0)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('dtype', ['uint8', 'float32'])
def test_graphs_that_normalize_get_padding_of_the_same_value(dtype):
    image = np.full((4, 6, 3), 200, np.uint8)
    settings = dict(resize=None, shape=[8, 8], pad=dict(divisor=1, value=0.5))
    plain = metadata(**settings)
    inside = metadata(**settings, normalized=True, input_dtype=dtype)
    expected = stack([prepare(image, plain)], plain)
    found = stack([prepare(image, inside)], inside)
    assert found.dtype == dtype and found.shape == (1, 3, 8, 8)
    mean, std = (np.array(x)[:, None, None] for x in (MEAN, STD))
    tolerance = 0.5 / min(STD) if dtype == 'uint8' else 1e-5
    np.testing.assert_allclose((found - mean) / std, expected, atol=tolerance)


def test_batches_that_would_fill_the_memory(monkeypatch):
    monkeypatch.setattr(metadata_module, 'MAX_PIXELS', 100)
    ours = metadata(dynamic='size', resize=None)
    image = prepare(np.zeros((9, 7, 3), np.uint8), ours)
    assert len(stack([image], ours)) == 1
    with pytest.raises(ValueError, match='a batch would have 126 pixels; at most 100'):
        stack([image] * 2, ours)


def test_images_of_a_batch_are_padded_to_the_largest():
    ours = metadata(dynamic='size', resize=None, pad=dict(divisor=8, value=-1))
    images = [
        prepare(np.zeros((*size, 3), np.uint8), ours) for size in ((9, 4), (5, 17))
    ]
    batch = stack(images, ours)
    assert batch.shape == (2, 3, 16, 24)
    assert (batch[0, :, :9, :4] != -1).all() and (batch[0, :, 9:] == -1).all()
    assert (batch[1, :, :5, :17] != -1).all() and (batch[1, :, :, 17:] == -1).all()


def test_images_that_are_too_small_for_the_graph():
    ours = metadata(dynamic='size', resize=None, least=[9, 7])
    image = np.zeros((9, 7, 3), np.uint8)
    assert stack([prepare(image, ours)], ours).shape == (1, 3, 9, 7)
    for small in (image[1:], image[:, 1:]):
        with pytest.raises(ValueError, match=r'takes images from \(9, 7\) on, got'):
            stack([prepare(small, ours)], ours)
