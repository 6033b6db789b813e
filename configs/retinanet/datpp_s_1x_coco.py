_base_ = './datpp_t_1x_coco.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.1,
        init_cfg=dict(checkpoint='work_dirs/datpp_s_300e_in1k/epoch_300.pth'),
    ),
    neck=dict(in_channels=[192, 384, 768]),
)
