# 80k iterations of Semantic FPN with LiSA, a cosine to 0 without warm-up. The learning
# rate, the weight decay and the batch follow PVT v2, whose recipe the paper
# follows. Unlike there, the constructor spares norms, biases, scales and tables.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=80000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
)
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        by_epoch=False,
        begin=0,
        end=80000,
        T_max=80000,
        eta_min=0.0,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
