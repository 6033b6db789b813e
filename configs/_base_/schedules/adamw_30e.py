# The column of Table 9 for fine-tuning at more pixels. The paper names no ends of the
# learning rate; here it starts at a thousandth and ends at 0.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=30, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-6, weight_decay=1e-8),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=5,
        end=30,
        T_max=25,
        eta_min=0.0,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
