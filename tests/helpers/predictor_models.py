"""Models of each task, small enough to predict in tests, and work dirs of them."""

from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config

from mmattn.engine.model import build_model

NORMALIZATION = dict(mean=[123.0, 116.0, 103.0], std=[58.0, 57.0, 56.0])
BACKBONE = dict(
    type='mmattn.IViT',
    arch=dict(embed_dims=(8, 16, 32, 64), depths=(1, 1, 1, 1), num_heads=(2, 4)),
)
CHANNELS = [8, 16, 32, 64]
CLASSES = {
    'detection': ['nucleus'],
    'segmentation': ['water', 'forest', 'desert', 'ice'],
    'classification': ['cat', 'dog', 'owl'],
}
PALETTE = [[0, 0, 200], [0, 150, 0], [220, 200, 90], [255, 255, 255]]


def detector() -> Config:
    cfg = Config.fromfile(
        Path(__file__).parents[2] / 'configs/demo/mask_rcnn_ivit_n_hela.py'
    )
    resize = dict(type='Resize', scale=(160, 120), keep_ratio=True)
    steps = cfg.test_dataloader.dataset.pipeline
    cfg.test_dataloader.dataset.pipeline = [
        resize if step.type == 'Resize' else step for step in steps
    ]
    regions = dict(out_channels=8)
    cfg.merge_from_dict(
        dict(
            model=dict(
                backbone=dict(_delete_=True, **BACKBONE),
                neck=dict(in_channels=CHANNELS, out_channels=8),
                rpn_head=dict(in_channels=8, feat_channels=8),
                roi_head=dict(
                    bbox_roi_extractor=regions,
                    mask_roi_extractor=regions,
                    bbox_head=dict(in_channels=8, fc_out_channels=16),
                    mask_head=dict(in_channels=8, conv_out_channels=8, num_convs=1),
                ),
                test_cfg=dict(
                    rpn=dict(nms_pre=50, max_per_img=20),
                    rcnn=dict(score_thr=0.0, max_per_img=6, mask_thr_binary=0.4),
                ),
            )
        )
    )
    return cfg


def segmentor() -> Config:
    metainfo = dict(classes=CLASSES['segmentation'], palette=PALETTE)
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(64, 48), keep_ratio=True),
        dict(type='LoadAnnotations'),
        dict(type='PackSegInputs'),
    ]
    dataset = dict(type='BaseSegDataset', metainfo=metainfo, pipeline=pipeline)
    return Config(
        dict(
            default_scope='mmseg',
            model=dict(
                type='EncoderDecoder',
                data_preprocessor=dict(
                    type='SegDataPreProcessor',
                    **NORMALIZATION,
                    bgr_to_rgb=True,
                    size_divisor=32,
                    test_cfg=dict(size_divisor=32),
                ),
                backbone=BACKBONE,
                decode_head=dict(
                    type='FCNHead',
                    in_channels=64,
                    in_index=3,
                    channels=8,
                    num_convs=1,
                    num_classes=4,
                    align_corners=False,
                ),
                test_cfg=dict(mode='whole'),
            ),
            test_dataloader=dict(dataset=dataset),
            visualizer=dict(type='SegLocalVisualizer', name='visualizer'),
        )
    )


def classifier() -> Config:
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='ResizeEdge', scale=40, edge='short'),
        dict(type='CenterCrop', crop_size=32),
        dict(type='PackInputs'),
    ]
    dataset = dict(type='CustomDataset', pipeline=pipeline)
    return Config(
        dict(
            default_scope='mmpretrain',
            data_preprocessor=dict(**NORMALIZATION, to_rgb=True),
            model=dict(
                type='ImageClassifier',
                backbone=BACKBONE | dict(out_indices=3, out_norm=False),
                neck=dict(type='GlobalAveragePooling'),
                head=dict(type='LinearClsHead', num_classes=3, in_channels=64),
            ),
            test_dataloader=dict(dataset=dataset),
        )
    )


CONFIGS = dict(detection=detector, segmentation=segmentor, classification=classifier)


def write_run(folder: Path, task: str, name: str = 'epoch_2.pth') -> Path:
    """Write the work dir of a finished run, with random weights that find something."""
    folder.mkdir(parents=True, exist_ok=True)
    cfg = CONFIGS[task]()
    text = [f'{key} = {value!r}\n' for key, value in cfg.to_dict().items()]
    (folder / f'{task}.py').write_text(''.join(text))
    model, _ = build_model(cfg, None)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # `trunc_normal_` draws otherwise in PyTorch 2.10
            parameter.data.normal_(std=parameter[0].numel() ** -0.5)
    meta = dict(dataset_meta=dict(classes=tuple(CLASSES[task])))
    if task == 'segmentation':
        meta['dataset_meta']['palette'] = PALETTE
        model.decode_head.conv_seg.weight.data.normal_(0, 1)
    torch.save(dict(meta=meta, state_dict=model.state_dict()), folder / name)
    (folder / 'last_checkpoint').write_text(f'elsewhere/{name}')
    return folder


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return an RGB image of smooth noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return coarse.repeat(8, 0).repeat(8, 1)[:height, :width].copy()
