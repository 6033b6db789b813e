_base_ = './mask_rcnn_ivit_n_300i_hela.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmattn.LiSANet',
        arch='hybrid_nano',
        img_size=256,
    ),
)
