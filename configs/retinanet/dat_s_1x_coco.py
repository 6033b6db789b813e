_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/adamw_1x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    # The map that RetinaNet has no use for would have a norm that nothing trains.
    backbone=dict(
        type='mmattn.DAT', arch='small', out_indices=(1, 2, 3), drop_path_rate=0.3
    ),
    neck=dict(in_channels=[192, 384, 768], start_level=0),
)
