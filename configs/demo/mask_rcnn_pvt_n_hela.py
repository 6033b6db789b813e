_base_ = './mask_rcnn_ivit_n_300i_hela.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.PVT',
        arch='nano',
        img_size=256,
    ),
)
