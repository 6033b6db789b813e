_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_90e_in21k.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    data_preprocessor=dict(num_classes=21841),
    backbone=dict(
        type='mmattn.LiSANet',
        arch='hybrid_small',
        drop_path_rate=0.1,
        out_indices=3,
        out_norm=False,
    ),
    neck=dict(type='mmattn.PooledMLP', in_channels=384),
    head=dict(num_classes=21841, in_channels=1536),
)
# 8 GPUs give a batch of 4096. Where 512 images do not fit, train with a batch of 128
# and `optim_wrapper.accumulative_counts=4`.
train_dataloader = dict(
    batch_size=512,
    dataset=dict(type='ImageNet21k', data_root='data/imagenet21k'),
)
# ImageNet-21K has no validation split.
val_dataloader = None
val_evaluator = None
test_dataloader = None
test_evaluator = None
default_hooks = dict(checkpoint=dict(save_best=None))
