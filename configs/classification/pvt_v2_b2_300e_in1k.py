_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_300e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(type='mmattn.PVTv2', arch='b2', drop_path_rate=0.1, out_indices=3),
    head=dict(in_channels=512),
)
train_dataloader = dict(sampler=dict(type='RepeatAugSampler'))
