_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/adamw_1x_batch64.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(type='mmattn.DATPlusPlus', arch='tiny', drop_path_rate=0.0),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
optim_wrapper = dict(optimizer=dict(lr=2e-4))
