_base_ = './pvt_t_80k_ade20k.py'
model = dict(
    backbone=dict(arch='large', init_cfg=dict(checkpoint='mmattn://pvt_large'))
)
