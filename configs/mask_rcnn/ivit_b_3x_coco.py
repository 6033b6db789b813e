_base_ = './ivit_t_3x_coco.py'
model = dict(
    backbone=dict(arch='base', drop_path_rate=0.4),
    neck=dict(in_channels=[96, 192, 384, 576]),
)
