# 160k iterations of Mask2Former's semantic segmentation. The learning rate falls to 0
# as a polynomial of power 0.9 without warm-up, and the backbone has a tenth of it.
# Gradients are clipped at 0.01. Norms and embeddings of the head have no weight decay.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=0.01, norm_type=2),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={
            'backbone': dict(lr_mult=0.1),
            'query_embed': dict(decay_mult=0.0),
            'query_feat': dict(decay_mult=0.0),
            'decode_head.level_embed': dict(decay_mult=0.0),
        },
    ),
)
param_scheduler = [
    dict(
        type='PolyLR',
        by_epoch=False,
        begin=0,
        end=160000,
        power=0.9,
        eta_min=0.0,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
