_base_ = './dat_plus_plus_t_80k_ade20k.py'
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(checkpoint='mmattn://dat_plus_plus_small'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
