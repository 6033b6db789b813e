_base_ = [
    '../_base_/models/upernet_light.py',
    '../_base_/datasets/fashion_scenes.py',
    '../_base_/schedules/demo.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    data_preprocessor=dict(mean=[85.0] * 3, std=[42.0] * 3),
    backbone=dict(type='mmattn.IViT', arch='nano'),
    decode_head=dict(
        in_channels=[32, 64, 160, 256],
        num_classes=6,
        loss_decode=dict(class_weight=None),
    ),
)
max_iters = 1200
train_cfg = dict(max_iters=max_iters, val_interval=600)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        by_epoch=False,
        begin=50,
        end=max_iters,
        T_max=max_iters - 50,
        eta_min_ratio=0.01,
    ),
]
default_hooks = dict(checkpoint=dict(interval=300, max_keep_ckpts=1))
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=4)
