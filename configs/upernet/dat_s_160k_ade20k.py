_base_ = './dat_t_160k_ade20k.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='work_dirs/dat_s_300e_in1k/epoch_300.pth'),
    )
)
