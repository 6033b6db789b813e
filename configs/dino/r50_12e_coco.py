_base_ = [
    '../_base_/models/dino.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/adamw_12e_dino.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='ResNet',
        depth=50,
        out_indices=(1, 2, 3),
        frozen_stages=1,
        norm_cfg=dict(type='BN', requires_grad=False),
        norm_eval=True,
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
    ),
    neck=dict(in_channels=[512, 1024, 2048]),
)
