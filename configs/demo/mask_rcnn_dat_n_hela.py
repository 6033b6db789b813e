_base_ = './mask_rcnn_ivit_n_300i_hela.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.DAT',
        arch='nano',
        img_size=256,
        window_size=8,
    ),
)
