_base_ = './mask_rcnn_ivit_n_300i_hela.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.PVTv2',
        arch='b0',
    ),
)
