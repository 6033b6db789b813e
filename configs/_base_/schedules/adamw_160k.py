# 160k iterations, from Table 10 of iViT. Its learning rate is 8e-5; the paper's text
# prints 5e-8, which could not train. The warm-up, the power and norms without weight
# decay follow Swin, whose recipe the paper uses. The constructor also spares
# biases, scales and the weights that mix heads.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=8e-5, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(
        type='PolyLR',
        by_epoch=False,
        begin=1500,
        end=160000,
        power=1.0,
        eta_min=0.0,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
