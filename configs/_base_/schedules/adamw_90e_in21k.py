# LiSA's pre-training on ImageNet-21K. The learning rate starts at 0 and ends at 1e-6 as
# in ConvNeXt, whose recipe the paper follows. There is no validation, because
# ImageNet-21K has no split for it.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=90)

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=4e-3, weight_decay=0.05),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-6,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=5,
        end=90,
        T_max=85,
        eta_min=1e-6,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=4096)
