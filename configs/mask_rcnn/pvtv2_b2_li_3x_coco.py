_base_ = './pvtv2_b2_3x_coco.py'
model = dict(backbone=dict(arch='b2-li'))
