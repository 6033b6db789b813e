# 160k iterations of SegFormer. The learning rate rises for 1500 iterations and falls to
# 0 linearly; the head's is ten times the backbone's. The norms of the backbone
# have no weight decay.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        custom_keys={'norm': dict(decay_mult=0.0), 'head': dict(lr_mult=10.0)}
    ),
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
