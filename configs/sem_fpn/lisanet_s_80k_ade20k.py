_base_ = [
    '../_base_/models/sem_fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_80k.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(type='mmattn.LiSANet', arch='small', drop_path_rate=0.15),
    neck=dict(in_channels=[64, 128, 320, 384]),
)
