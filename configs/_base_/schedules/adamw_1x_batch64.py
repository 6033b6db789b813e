# 12 epochs of the authors' code of DAT++: a batch of 64, 2 images on each of 32 GPUs.
# The constructor spares norms and the tables of deformable attention, as theirs does.
# It also spares biases and the tables of neighborhood attention, which theirs does not.
# RetinaNet has half of the learning rate.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=4e-4, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(
        type='MultiStepLR',
        by_epoch=True,
        begin=0,
        end=12,
        milestones=[8, 11],
        gamma=0.1,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=64)
