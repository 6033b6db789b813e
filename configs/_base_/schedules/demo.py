# A few hundred iterations of AdamW with a cosine, counted in iterations.
max_iters = 300
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
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
