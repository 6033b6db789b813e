_base_ = './upernet_ivit_n_fashion_scenes.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.DATPlusPlus',
        arch='nano',
        img_size=128,
    ),
    decode_head=dict(in_channels=[32, 64, 128, 256]),
)
