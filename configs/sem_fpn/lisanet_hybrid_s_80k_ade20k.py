_base_ = [
    '../_base_/models/sem_fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_80k.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='mmattn.LiSANet',
        arch='hybrid_small',
        drop_path_rate=0.15,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/lisanet_hybrid_s_300e_in1k/epoch_300.pth',
        ),
    ),
    neck=dict(in_channels=[64, 128, 320, 384]),
)
