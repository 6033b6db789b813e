_base_ = './upernet_ivit_n_landcover.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.DATPlusPlus',
        arch='nano',
        img_size=192,
    ),
    decode_head=dict(in_channels=[32, 64, 128, 256]),
)
