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
        patch_size=16,
        drop_path_rate=0.1,
    ),
    head=dict(in_channels=192),
)
# The paper follows Zheng et al., 2023. Their code clips gradients, and does not repeat
# augmentations as DeiT does: https://github.com/HKUNLP/efficient-attention.
optim_wrapper = dict(clip_grad=dict(max_norm=5.0))
