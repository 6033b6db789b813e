_base_ = './ivit_t_3x_coco.py'
model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='work_dirs/ivit_s_300e_in1k/epoch_300.pth'),
    )
)
