# The network of docs/mask_search.md, without masks.
_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/landcover_patches.py',
    '../_base_/schedules/demo_15e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    data_preprocessor=dict(num_classes=10),
    backbone=dict(
        type='mmattn.MaiT',
        arch=dict(embed_dims=64, depth=8, num_heads=4),
        masking='none',
        img_size=32,
        patch_size=4,
        out_type='cls_token',
    ),
    neck=None,
    head=dict(num_classes=10, in_channels=64),
    train_cfg=None,
)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
default_hooks = dict(
    logger=dict(interval=29),
    checkpoint=dict(interval=5, max_keep_ckpts=1, save_best=None),
)
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=64)
