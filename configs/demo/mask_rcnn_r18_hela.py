_base_ = './mask_rcnn_ivit_n_300i_hela.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='ResNet',
        depth=18,
        norm_cfg=dict(type='BN', requires_grad=True),
        norm_eval=False,  # mmdet's default keeps statistics, of which there are none
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
