_base_ = [
    '../_base_/models/deformable_detr.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/adamw_50e_detr.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='mmattn.LiSANet',
        arch='hybrid_small',
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/lisanet_hybrid_s_300e_in1k/epoch_300.pth',
        ),
    ),
    neck=dict(in_channels=[128, 320, 384]),
)
