# 40k iterations of 16 images, as the paper of PVT v2 prints; it has no code for them.
# The rest is the authors' code of PVT: a polynomial of power 0.9 to 0 without warm-up,
# and weight decay for all parameters.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=40000, val_interval=8000)
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
        end=40000,
        power=0.9,
        eta_min=0.0,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
