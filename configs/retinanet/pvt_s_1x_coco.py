_base_ = './pvt_t_1x_coco.py'
model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='mmattn://pvt_small'))
)
