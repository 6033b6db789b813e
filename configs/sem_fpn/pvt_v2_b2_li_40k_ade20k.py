_base_ = './pvt_v2_b2_40k_ade20k.py'
model = dict(
    backbone=dict(arch='b2_li', init_cfg=dict(checkpoint='mmattn://pvt_v2_b2_li'))
)
