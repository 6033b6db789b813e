_base_ = './pvtv2_b2_3x_coco.py'
model = dict(
    backbone=dict(arch='b2-li', init_cfg=dict(checkpoint='mmattn://pvt_v2_b2_li'))
)
