# 12 epochs of Mask R-CNN with LiSA. The steps, the warm-up and norms without weight
# decay follow Swin, whose recipe the paper uses. The constructor also spares
# biases, scales and tables.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(
        type='MultiStepLR',
        by_epoch=True,
        begin=0,
        end=12,
        milestones=[8, 11],
        gamma=0.1,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
