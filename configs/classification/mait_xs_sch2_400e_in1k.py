_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_400e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.MaiT',
        arch='xsmall',
        masking='sch2',
        drop_path_rate=0.1,
        out_type='cls_token',
    ),
    neck=None,
    head=dict(in_channels=288),
)
train_dataloader = dict(sampler=dict(type='RepeatAugSampler'))
