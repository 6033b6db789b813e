"""Places of an image file's pixels after a config's test pipeline."""

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope

from mmattn.analysis import image_in_model

HEIGHT, WIDTH = 60, 90


@pytest.fixture
def image(tmp_path):
    cv2.imwrite(str(tmp_path / 'image.png'), np.zeros((HEIGHT, WIDTH), np.uint8))
    return tmp_path / 'image.png'


TRANSFORMS = {
    'resize': ('mmdet', [dict(type='Resize', scale=(64, 64), keep_ratio=True)]),
    'resize-unevenly': ('mmseg', [dict(type='Resize', scale=(200, 80))]),
    'crop': (
        'mmpretrain',
        [
            dict(type='ResizeEdge', scale=101, edge='short', backend='pillow'),
            dict(type='CenterCrop', crop_size=88),
        ],
    ),
    'crop-then-resize': (
        'mmpretrain',
        [
            dict(type='CenterCrop', crop_size=(70, 45)),
            dict(type='mmdet.Resize', scale=(300, 100)),
        ],
    ),
    'pad': (
        'mmdet',
        [
            dict(type='Pad', size_divisor=64),
            dict(type='Resize', scale=(150, 150), keep_ratio=True),
        ],
    ),
}


def run_pipeline(scope, transforms, image):
    packers = dict(
        mmdet='PackDetInputs', mmseg='PackSegInputs', mmpretrain='PackInputs'
    )
    pack = dict(type=packers[scope], meta_keys=())
    pipeline = [dict(type='LoadImageFromFile'), *transforms, pack]
    cfg = Config(dict(test_dataloader=dict(dataset=dict(pipeline=pipeline))))
    with DefaultScope.overwrite_default_scope(scope):
        return image_in_model._run_pipeline(cfg, 'config.py', str(image))


@pytest.mark.parametrize('name', TRANSFORMS)
def test_a_pixel_is_followed_through_the_pipeline(tmp_path, name):
    """A white square around it has its middle there afterwards."""
    y, x = 18, 60
    picture = np.zeros((HEIGHT, WIDTH), np.uint8)
    picture[y - 3 : y + 4, x - 3 : x + 4] = 255
    cv2.imwrite(str(tmp_path / 'square.png'), picture)
    packed, place = run_pipeline(*TRANSFORMS[name], tmp_path / 'square.png')
    white = packed['inputs'].float().mean(0)
    middles = [
        (white.sum(1 - dim) * (torch.arange(side) + 0.5)).sum() / white.sum()
        for dim, side in enumerate(white.shape)
    ]
    assert place(y, x) == pytest.approx([float(m) for m in middles], abs=0.3)


@pytest.mark.parametrize(
    'transforms, message',
    [
        ([dict(type='RandomCrop', crop_size=(32, 32))], 'or Pad, got RandomCrop'),
        (
            [dict(type='CenterCrop', crop_size=128, auto_pad=True)],
            'or Pad, got CenterCrop',
        ),
        ([dict(type='RandomFlip', prob=1.0)], 'the test pipeline flips images'),
    ],
    ids=['random-crop', 'padding-crop', 'flip'],
)
def test_a_pipeline_that_moves_pixels_unknown_ways_is_refused(
    image, transforms, message
):
    with pytest.raises(ValueError, match=message):
        run_pipeline('mmdet', transforms, image)
