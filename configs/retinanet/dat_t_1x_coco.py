_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/adamw_1x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    # RetinaNet does not use the first map, whose norm would never be trained.
    backbone=dict(
        type='mmattn.DAT',
        arch='tiny',
        out_indices=(1, 2, 3),
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/dat_t_300e_in1k/epoch_300.pth'
        ),
    ),
    neck=dict(in_channels=[192, 384, 768], start_level=0),
)
