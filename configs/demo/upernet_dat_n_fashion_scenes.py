_base_ = './upernet_ivit_n_fashion_scenes.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.DAT',
        arch='nano',
        img_size=128,
        window_size=4,
    ),
)
