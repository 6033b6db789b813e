_base_ = [
    '../_base_/models/sem_fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_80k_poly.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='mmattn.DAT',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained', checkpoint='work_dirs/dat_t_300e_in1k/epoch_300.pth'
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(constructor='mmattn.LayerDecayOptimWrapperConstructor')
