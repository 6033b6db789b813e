_base_ = [
    '../_base_/models/mask_rcnn_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/adamw_1x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.LiSANet',
        arch='hybrid_small',
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/lisanet_hybrid_s_300e_in1k/epoch_300.pth',
        ),
    ),
    neck=dict(in_channels=[64, 128, 320, 384]),
)
