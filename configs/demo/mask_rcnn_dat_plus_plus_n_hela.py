_base_ = './mask_rcnn_ivit_n_300i_hela.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.DATPlusPlus',
        arch='nano',
        img_size=256,
    ),
    neck=dict(in_channels=[32, 64, 128, 256]),
)
