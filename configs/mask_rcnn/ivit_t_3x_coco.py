_base_ = [
    '../_base_/models/mask_rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/adamw_3x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.IViT',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/ivit_t_300e_in1k/epoch_300.pth'
        ),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
