_base_ = './pvt_t_3x_coco.py'
model = dict(
    backbone=dict(
        arch='large', drop_path_rate=0.0, init_cfg=dict(checkpoint='mmattn://pvt_large')
    )
)
