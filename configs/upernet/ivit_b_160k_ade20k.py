_base_ = './ivit_t_160k_ade20k.py'
model = dict(
    backbone=dict(arch='base'),
    decode_head=dict(in_channels=[96, 192, 384, 576]),
    auxiliary_head=dict(in_channels=384),
)
