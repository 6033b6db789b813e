_base_ = [
    '../_base_/models/cascade_mask_rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/adamw_3x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(type='mmattn.DAT', arch='base', drop_path_rate=0.5),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
