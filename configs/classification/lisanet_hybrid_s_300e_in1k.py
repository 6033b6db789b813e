_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_300e_warmup20.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.LiSANet',
        arch='hybrid_small',
        # The paper gives this rate for LiSANet; HyLiSANet has the same here.
        drop_path_rate=0.1,
        out_indices=3,
        out_norm=False,
    ),
    neck=dict(type='mmattn.PooledMLP', in_channels=384),
    head=dict(in_channels=1536),
)
train_dataloader = dict(sampler=dict(type='RepeatAugSampler'))
