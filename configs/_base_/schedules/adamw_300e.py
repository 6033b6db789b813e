# DeiT's recipe, which MaiT and PVT follow, and the plain ViTs in Table 9 of iViT. That
# paper does not say where the learning rate starts and ends; 1e-6 and 1e-5 are DeiT's.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
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
        end=300,
        T_max=295,
        eta_min=1e-5,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
