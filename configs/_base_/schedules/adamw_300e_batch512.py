# H-MaiT: Swin's recipe at the paper's batch of 512, half of Swin's, and with it half of
# Swin's learning rates: 5e-4, from 5e-7 and down to 5e-6.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4, weight_decay=0.05),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=20,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=20,
        end=300,
        T_max=280,
        eta_min=5e-6,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=512)
