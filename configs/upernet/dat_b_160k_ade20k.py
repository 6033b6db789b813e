_base_ = './dat_t_160k_ade20k.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.5,
        init_cfg=dict(checkpoint='work_dirs/dat_b_300e_in1k/epoch_300.pth'),
    ),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
