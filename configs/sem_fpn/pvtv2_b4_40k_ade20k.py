_base_ = './pvtv2_b2_40k_ade20k.py'
model = dict(backbone=dict(arch='b4'))
