# DAT++ at 384 pixels: a cosine to a hundredth, without warm-up. The batch is 512
# because the authors' code gives the learning rate for 512 images; it has 24 images per
# GPU.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=30, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-5, weight_decay=1e-8),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=0,
        end=30,
        T_max=30,
        eta_min=2e-7,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=512)
