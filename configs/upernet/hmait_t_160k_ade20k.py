_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_160k.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='mmattn.HMaiT',
        arch='tiny',
        drop_path_rate=0.3,
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/hmait_t_300e_in1k/epoch_300.pth'
        ),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
optim_wrapper = dict(optimizer=dict(lr=6e-5, weight_decay=0.01))
