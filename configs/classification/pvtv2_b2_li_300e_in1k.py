_base_ = './pvtv2_b2_300e_in1k.py'
model = dict(backbone=dict(arch='b2-li'))
