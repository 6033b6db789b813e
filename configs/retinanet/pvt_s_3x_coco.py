_base_ = './pvt_t_3x_coco.py'
model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='mmattn://pvt_small'))
)
