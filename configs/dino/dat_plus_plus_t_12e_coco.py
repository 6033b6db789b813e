_base_ = [
    '../_base_/models/dino.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/adamw_12e_dino.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.DATPlusPlus',
        arch='tiny',
        out_indices=(1, 2, 3),
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://dat_plus_plus_tiny'),
    ),
    neck=dict(in_channels=[128, 256, 512]),
)
