_base_ = './hmait_t_160k_ade20k.py'
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(checkpoint='work_dirs/hmait_s_300e_in1k/epoch_300.pth'),
    )
)
