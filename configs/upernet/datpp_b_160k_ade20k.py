_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_160k.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(type='mmattn.DATPlusPlus', arch='base', drop_path_rate=0.7),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
optim_wrapper = dict(optimizer=dict(lr=6e-5, weight_decay=0.01))
