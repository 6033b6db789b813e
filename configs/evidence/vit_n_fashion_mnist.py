# ViT with 7 x 7 tokens. tools/evidence/claims sets attention and heads.
_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/fashion_mnist.py',
    '../_base_/schedules/evidence.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    data_preprocessor=dict(num_classes=10, mean=[72.94], std=[90.02], to_rgb=False),
    backbone=dict(
        type='mmattn.ViT',
        arch=dict(embed_dims=48, depth=4, num_heads=8),
        attention='mhsa',
        in_channels=1,
        patch_size=4,
        img_size=28,
    ),
    head=dict(num_classes=10, in_channels=48),
    train_cfg=None,
)
default_hooks = dict(
    logger=dict(interval=20, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=100, max_keep_ckpts=1, save_best=None),
)
log_processor = dict(window_size=20, by_epoch=False)
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=32)
