_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/adamw_1x_batch64.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    # RetinaNet does not use the first map, whose norm would never be trained.
    backbone=dict(
        type='mmattn.DATPlusPlus',
        arch='tiny',
        out_indices=(1, 2, 3),
        drop_path_rate=0.0,
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://dat_plus_plus_tiny'),
    ),
    neck=dict(in_channels=[128, 256, 512], start_level=0),
)
optim_wrapper = dict(optimizer=dict(lr=2e-4))
