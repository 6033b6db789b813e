_base_ = './pvt_t_1x_coco.py'
model = dict(
    backbone=dict(
        arch='medium',
        drop_path_rate=0.0,
        init_cfg=dict(checkpoint='mmattn://pvt_medium'),
    )
)
