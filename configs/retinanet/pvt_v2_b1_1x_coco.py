_base_ = './pvt_v2_b2_1x_coco.py'
model = dict(backbone=dict(arch='b1', init_cfg=dict(checkpoint='mmattn://pvt_v2_b1')))
