_base_ = './dat_t_3x_coco.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.5,
        init_cfg=dict(checkpoint='work_dirs/dat_b_300e_in1k/epoch_300.pth'),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
