_base_ = './dat_plus_plus_t_80k_ade20k.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.7,
        init_cfg=dict(checkpoint='mmattn://dat_plus_plus_base'),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
