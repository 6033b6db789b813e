_base_ = [
    '../_base_/models/sem_fpn.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/adamw_80k_poly.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='mmattn.DATPlusPlus',
        arch='tiny',
        drop_path_rate=0.4,
        init_cfg=dict(type='Pretrained', checkpoint='mmattn://dat_plus_plus_tiny'),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
optim_wrapper = dict(constructor='mmattn.LayerDecayOptimWrapperConstructor')
