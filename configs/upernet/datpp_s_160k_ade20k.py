_base_ = './datpp_t_160k_ade20k.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.5,
        init_cfg=dict(checkpoint='work_dirs/datpp_s_300e_in1k/epoch_300.pth'),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
