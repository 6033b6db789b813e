_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_400e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.MaiT',
        arch='tiny',
        masking='soft',
        drop_path_rate=0.0,
        out_type='cls_token',
    ),
    neck=None,
    head=dict(in_channels=192),
)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
train_dataloader = dict(sampler=dict(type='RepeatAugSampler'))
