"""Small models for tests of exports."""

from mmengine.config import Config

from mmattn.engine.model import build_model

NORMALIZATION = dict(mean=[123.0, 116.0, 103.0], std=[58.0, 57.0, 56.0])
BACKBONE = dict(
    type='mmattn.IViT',
    arch=dict(embed_dims=(8, 16, 32, 64), depths=(1, 1, 1, 1), num_heads=(2, 4)),
)


def classifier_config(num_classes: int = 5) -> Config:
    head = dict(type='LinearClsHead', num_classes=num_classes, in_channels=64)
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='ResizeEdge', scale=72, edge='short', interpolation='bicubic'),
        dict(type='CenterCrop', crop_size=64),
        dict(type='PackInputs'),
    ]
    names = [f'class {i}' for i in range(num_classes)]
    dataset = dict(type='CustomDataset', metainfo=dict(classes=names))
    return Config(
        dict(
            default_scope='mmpretrain',
            data_preprocessor=dict(**NORMALIZATION, to_rgb=True),
            model=dict(
                type='ImageClassifier',
                backbone=BACKBONE | dict(out_indices=3, out_norm=False),
                neck=dict(type='GlobalAveragePooling'),
                head=head,
            ),
            test_dataloader=dict(dataset=dict(**dataset, pipeline=pipeline)),
        )
    )


def built(cfg: Config):
    return build_model(cfg, None)[0]


def segmentor_config(head: dict, **model) -> Config:
    channels = dict(in_channels=[8, 16, 32, 64], in_index=[0, 1, 2, 3], channels=8)
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
