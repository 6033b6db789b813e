_base_ = [
    '../_base_/models/sem_fpn.py',
    '../_base_/datasets/ade20k_align32.py',
    '../_base_/schedules/adamw_40k_poly.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='mmattn.PVTv2',
        arch='b2',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://pvt_v2_b2'),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
