_base_ = './pvt_v2_b2_1x_coco.py'
model = dict(
    backbone=dict(arch='b0', init_cfg=dict(checkpoint='mmattn://pvt_v2_b0')),
    neck=dict(in_channels=[32, 64, 160, 256]),
)
