# 80k iterations, from the authors' code of PVT, which has 40k at twice the batch and
# twice the learning rate. The learning rate falls to 0 as a polynomial of power 0.9
# without warm-up. All parameters have weight decay.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=80000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4),
)
param_scheduler = [
    dict(
        type='PolyLR',
        by_epoch=False,
        begin=0,
        end=80000,
        power=0.9,
        eta_min=0.0,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
