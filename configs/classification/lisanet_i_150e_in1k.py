_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_150e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(type='mmattn.LiSANet', arch='isotropic', drop_path_rate=0.0),
    head=dict(in_channels=192),
)
train_dataloader = dict(sampler=dict(type='RepeatAugSampler'))
