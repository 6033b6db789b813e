"""How images are prepared for a model, read from its config."""

import pytest
from mmdet.models.data_preprocessors import DetDataPreprocessor
from mmpretrain.models.utils import ClsDataPreprocessor
from mmseg.models.data_preprocessor import SegDataPreProcessor
from torch import nn

from mmattn.engine.model import class_names
from mmattn.export.config_model import image_steps, normalization
from mmattn.export.errors import ExportError

LOAD, PACK = dict(type='LoadImageFromFile'), dict(type='mmdet.PackDetInputs')
PLAIN = dict(interpolation='bilinear', backend='cv2')
RESIZE = dict(type='Resize', scale=(1333, 800), keep_ratio=True)
EDGE = dict(type='ResizeEdge', scale=256)
CROP = dict(type='CenterCrop', crop_size=224)


def steps(*pipeline):
    return image_steps([LOAD, *pipeline, PACK])


@pytest.mark.parametrize(
    'pipeline, resize, crop',
    [
        ([], None, None),
        ([RESIZE], dict(scale=[1333, 800], keep_ratio=True, **PLAIN), None),
        (
            [dict(type='mmseg.Resize', scale=96, backend='pillow')],
            dict(scale=[96, 96], keep_ratio=False, **PLAIN) | dict(backend='pillow'),
            None,
        ),
        (
            [EDGE | dict(interpolation='bicubic'), CROP],
            dict(short_side=256, **PLAIN) | dict(interpolation='bicubic'),
            [224, 224],
        ),
        ([CROP | dict(crop_size=(100, 50))], None, [50, 100]),
    ],
    ids=['none', 'resize', 'square', 'edge', 'crop'],
)
def test_steps(pipeline, resize, crop):
    assert steps(*pipeline) == dict(resize=resize, crop=crop)


REFUSED = [
    ([dict(type='RandomFlip', prob=0.5)], 'RandomFlip'),
    ([RESIZE, RESIZE], 'the step .*Resize'),
    ([CROP, RESIZE], 'the step .*Resize'),
    ([CROP, EDGE], 'the step .*ResizeEdge'),
    ([CROP, CROP], 'the step .*CenterCrop'),
    ([CROP | dict(auto_pad=True)], 'auto_pad'),
    ([EDGE | dict(edge='long')], 'long'),
    ([dict(type='Resize', scale_factor=(2, 3))], 'must have a `scale`'),
]


def test_other_steps_are_refused():
    for pipeline, message in REFUSED:
        with pytest.raises(ExportError, match=message):
            steps(*pipeline)


MEAN, STD = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
VALUES = dict(mean=MEAN, std=STD)


@pytest.mark.parametrize(
    'preprocessor, order, divisor, value',
    [
        (DetDataPreprocessor(**VALUES, bgr_to_rgb=True), 'rgb', 1, 0),
        (DetDataPreprocessor(**VALUES, pad_size_divisor=32, pad_value=7), 'bgr', 32, 7),
        (ClsDataPreprocessor(**VALUES, to_rgb=True), 'rgb', 1, 0),
        (ClsDataPreprocessor(**VALUES, pad_size_divisor=8), 'bgr', 8, 0),
        (SegDataPreProcessor(**VALUES, bgr_to_rgb=True, size=(9, 9)), 'rgb', 1, 0),
        (
            SegDataPreProcessor(
                **VALUES, size_divisor=2, pad_val=3, test_cfg=dict(size_divisor=16)
            ),
            *('bgr', 16, 3),
        ),
    ],
    ids=['mmdet', 'mmdet-bgr', 'mmpretrain', 'mmpretrain-bgr', 'mmseg', 'mmseg-bgr'],
)
def test_normalization(preprocessor, order, divisor, value):
    model = nn.Module()
    model.data_preprocessor = preprocessor
    pad = dict(divisor=divisor, value=value)
    assert normalization(model) == VALUES | dict(channel_order=order, pad=pad)


def test_without_normalization():
    model = nn.Module()
    model.data_preprocessor = DetDataPreprocessor()
    found = normalization(model)
    assert found['mean'] == [0] * 3 and found['std'] == [1] * 3
    model.data_preprocessor = ClsDataPreprocessor(mean=[5], std=[2])
    assert normalization(model)['mean'] == [5] * 3


def test_other_preprocessors_are_refused():
    model = nn.Module()
    with pytest.raises(ExportError, match='data_preprocessor NoneType'):
        normalization(model)
    model.data_preprocessor = SegDataPreProcessor(test_cfg=dict(size=(512, 512)))
    with pytest.raises(ExportError, match='padding to `test_cfg.size`'):
        normalization(model)


def test_classes_come_from_the_checkpoint_then_from_the_config():
    dataset = dict(type='ADE20KDataset', metainfo=dict(classes=('a', 'b')))
    cfg = dict(default_scope='mmseg', test_dataloader=dict(dataset=dataset))
    saved = dict(meta=dict(dataset_meta=dict(classes='cat', palette=[(1, 2, 3)])))
    assert class_names(cfg, saved) == dict(classes=['cat'], palette=[[1, 2, 3]])
    assert class_names(cfg, {}) == dict(classes=['a', 'b'], palette=None)
    dataset['metainfo']['palette'] = 'random'
    assert class_names(cfg, {}) == dict(classes=['a', 'b'], palette=None)
    del dataset['metainfo']
    found = class_names(cfg, None)
    assert len(found['classes']) == len(found['palette']) == 150
    assert class_names({}, None) == dict(classes=None, palette=None)
