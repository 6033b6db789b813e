# MaiT: DeiT's recipe for 400 epochs. 1e-3 is the paper's 5e-4 for each 512 images; XT
# and T have twice that, in their leaves. The warm-up and the end of the learning rate,
# 1e-5, are DeiT's, which starts at 1e-6; here it starts at a thousandth.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=400, val_interval=1)
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
        end=400,
        T_max=395,
        eta_min=1e-5,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
