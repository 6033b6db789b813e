_base_ = './ivit_t_3x_coco.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.4,
        init_cfg=dict(checkpoint='work_dirs/ivit_b_300e_in1k/epoch_300.pth'),
    ),
    neck=dict(in_channels=[96, 192, 384, 576]),
)
