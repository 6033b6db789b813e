_base_ = './pvt_v2_b2_300e_in1k.py'
model = dict(backbone=dict(arch='b1'))
