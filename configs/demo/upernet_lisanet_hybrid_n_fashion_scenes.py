_base_ = './upernet_ivit_n_fashion_scenes.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.LiSANet',
        arch='hybrid_nano',
        img_size=128,
    ),
)
