_base_ = './datpp_t_80k_ade20k.py'
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(checkpoint='work_dirs/datpp_s_300e_in1k/epoch_300.pth'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
