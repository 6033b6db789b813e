# AdamW for a DETR from scratch in some 15 minutes: 1,200 iterations, smaller steps.
max_iters = 1200
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=200)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=4e-4, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(
        type='CosineAnnealingLR',
        by_epoch=False,
        begin=20,
        end=max_iters,
        T_max=max_iters - 20,
        eta_min_ratio=0.01,
    ),
]
