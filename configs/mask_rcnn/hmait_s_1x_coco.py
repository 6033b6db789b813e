_base_ = './hmait_t_1x_coco.py'
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(checkpoint='work_dirs/hmait_s_300e_in1k/epoch_300.pth'),
    )
)
