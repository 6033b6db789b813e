_base_ = './dat_plus_plus_t_160k_ade20k.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.5,
        init_cfg=dict(checkpoint='mmattn://dat_plus_plus_small'),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
