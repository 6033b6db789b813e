_base_ = './ivit_t_160k_ade20k.py'
model = dict(
    backbone=dict(
        arch='base',
        init_cfg=dict(checkpoint='work_dirs/ivit_b_300e_in1k/epoch_300.pth'),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 576]),
    auxiliary_head=dict(in_channels=384),
)
