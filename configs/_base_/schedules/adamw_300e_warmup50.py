# DAT-B: 4e-4 for each 512 images, 50 epochs of warm-up and gradients of norm 1 at most;
# the ends of the learning rate are those of the smaller ones.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=8e-4, weight_decay=0.05),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1.25e-3,
        by_epoch=True,
        begin=0,
        end=50,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=50,
        end=300,
        T_max=250,
        eta_min=1e-5,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
