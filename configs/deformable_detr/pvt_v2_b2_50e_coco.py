_base_ = [
    '../_base_/models/deformable_detr.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/adamw_50e_detr.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.PVTv2',
        arch='b2',
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://pvt_v2_b2'),
    ),
    neck=dict(in_channels=[128, 320, 512]),
)
