"""Places of an image file's pixels after a config's test pipeline."""

from functools import partial

import numpy as np
import pytest
from predictor_models import classifier, detector, segmentor
from refusals import refuses

from mmattn.apis.config_model import ConfigModel
from mmattn.apis.find import Found

IMAGE = np.zeros((60, 90, 3), np.uint8)
MODELS = dict(mmdet=detector, mmpretrain=classifier, mmseg=segmentor)
PACKERS = dict(mmdet='PackDetInputs', mmpretrain='PackInputs', mmseg='PackSegInputs')
SMALLER = dict(type='Resize', scale=(150, 150), keep_ratio=True)
TRANSFORMS = {
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
    'pad': ('mmdet', [dict(type='Pad', size_divisor=64), SMALLER]),
}


def view(scope, transforms, image=IMAGE):
    pack = dict(type=PACKERS[scope], meta_keys=())
    cfg = MODELS[scope]()
    load = dict(type='LoadImageFromFile')
    cfg.test_dataloader.dataset.pipeline = [load, *transforms, pack]
    model = ConfigModel(Found('config.py', cfg, None), 'cpu')
    return model.inspect(image, lambda model, view: view)


@pytest.mark.parametrize('name', TRANSFORMS)
def test_a_pixel_is_followed_through_the_pipeline(name):
    """A white square around it has its middle there afterwards."""
    y, x = 18, 60
    image = IMAGE.copy()
    image[y - 3 : y + 4, x - 3 : x + 4] = 255
    found = view(*TRANSFORMS[name], image)
    white = found.picture[: found.size[0], : found.size[1]].mean(2)
    middles = [
        (white.sum(1 - dim) * (np.arange(side) + 0.5)).sum() / white.sum()
        for dim, side in enumerate(white.shape)
    ]
    assert found.place(y, x) == pytest.approx(middles, abs=0.3)


def test_a_pixel_that_is_cropped_away_is_named():
    with pytest.raises(ValueError, match='query 30 2 is not in the middle 88x88'):
        view(*TRANSFORMS['crop']).place(30, 2)


test_a_pipeline_that_moves_pixels_unknown_ways_is_refused = refuses(
    partial(view, 'mmdet'),
    ([dict(type='RandomCrop', crop_size=(32, 32))], 'or Pad, got RandomCrop'),
    ([dict(type='CenterCrop', crop_size=128, auto_pad=True)], 'or Pad, got CenterCrop'),
    ([dict(type='RandomFlip', prob=1.0)], 'or Pad, got RandomFlip'),
)
