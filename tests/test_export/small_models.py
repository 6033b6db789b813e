"""Small models for tests of exports."""

from mmengine.config import Config
from predictor_models import BACKBONE, CHANNELS, NORMALIZATION, classifier

from mmattn.engine.model import build_model


def classifier_config(num_classes: int = 5) -> Config:
    cfg = classifier()
    dataset = cfg.test_dataloader.dataset
    dataset.metainfo = dict(classes=[f'class {i}' for i in range(num_classes)])
    dataset.pipeline[1].update(scale=72, interpolation='bicubic')
    dataset.pipeline[2].crop_size = 64
    cfg.model.head.num_classes = num_classes
    return cfg


def built(cfg: Config):
    return build_model(cfg, None)[0]


def segmentor_config(head: dict, **model) -> Config:
    channels = dict(in_channels=CHANNELS, in_index=[0, 1, 2, 3], channels=8)
    head = channels | dict(num_classes=5, align_corners=False) | head
    pad = dict(size_divisor=32, test_cfg=dict(size_divisor=32))
    settings = dict(
        type='EncoderDecoder',
        data_preprocessor=dict(
            type='SegDataPreProcessor', **NORMALIZATION, bgr_to_rgb=True, **pad
        ),
        backbone=BACKBONE,
        decode_head=head,
        test_cfg=dict(mode='whole'),
    )
    return Config(dict(default_scope='mmseg', model=settings | model))
