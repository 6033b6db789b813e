_base_ = [
    '../_base_/models/ddq.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/adamw_12e_ddq.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.IViT',
        arch='tiny',
        out_indices=(1, 2, 3),
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/ivit_t_300e_in1k/epoch_300.pth'
        ),
    ),
    neck=dict(in_channels=[128, 320, 512]),
)
