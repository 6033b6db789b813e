# A few minutes of AdamW with a cosine, counted in epochs. Only the last epoch is
# evaluated.
max_epochs = 15
train_cfg = dict(
    type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=max_epochs
)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
)
param_scheduler = [
    dict(
        type='LinearLR', start_factor=0.01, begin=0, end=1, convert_to_iter_based=True
    ),
    dict(
        type='CosineAnnealingLR',
        begin=1,
        end=max_epochs,
        T_max=max_epochs - 1,
        eta_min_ratio=0.01,
        convert_to_iter_based=True,
    ),
]
