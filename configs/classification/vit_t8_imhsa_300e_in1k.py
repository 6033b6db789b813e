_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_300e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.ViT',
        arch='tiny',
        attention='imhsa',
        patch_size=8,
        drop_path_rate=0.1,
    ),
    head=dict(in_channels=192),
)
