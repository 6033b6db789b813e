_base_ = './dat_plus_plus_t_3x_coco.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.5,
        init_cfg=dict(checkpoint='mmattn://dat_plus_plus_small'),
    ),
    neck=dict(in_channels=[192, 384, 768]),
)
