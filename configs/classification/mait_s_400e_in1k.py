_base_ = './mait_xs_soft_400e_in1k.py'
model = dict(
    backbone=dict(
        arch='small', masking='sch2', layer_scale=1e-5, drop_path_schedule='constant'
    ),
    head=dict(in_channels=384),
)
