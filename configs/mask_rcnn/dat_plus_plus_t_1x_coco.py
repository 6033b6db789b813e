_base_ = [
    '../_base_/models/mask_rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/adamw_1x_batch64.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.DATPlusPlus',
        arch='tiny',
        drop_path_rate=0.0,
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://dat_plus_plus_tiny'),
    ),
    neck=dict(
        in_channels=[64, 128, 256, 512], start_level=0, add_extra_convs='on_input'
    ),
)
