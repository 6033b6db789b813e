_base_ = './pvtv2_b2_1x_coco.py'
model = dict(backbone=dict(arch='b3'))
