_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/adamw_1x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(type='mmattn.DAT', arch='tiny', drop_path_rate=0.2),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
