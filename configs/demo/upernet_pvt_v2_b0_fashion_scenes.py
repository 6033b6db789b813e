_base_ = './upernet_ivit_n_fashion_scenes.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.PVTv2',
        arch='b0',
    ),
)
