# 12 epochs of the authors' code of PVT, RetinaNet's learning rate: weight decay for all
# parameters, 500 iterations of warm-up. Mask R-CNN and the large backbones give their
# own learning rates.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4),
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
auto_scale_lr = dict(enable=False, base_batch_size=16)
