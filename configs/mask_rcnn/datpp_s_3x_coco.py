_base_ = [
    '../_base_/models/mask_rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/adamw_3x_batch64.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(type='mmattn.DATPlusPlus', arch='small', drop_path_rate=0.5),
    neck=dict(
        in_channels=[96, 192, 384, 768], start_level=0, add_extra_convs='on_input'
    ),
)
