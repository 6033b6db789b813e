_base_ = './upernet_ivit_n_landcover.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.DAT',
        arch='nano',
        img_size=192,
        window_size=6,
    ),
)
