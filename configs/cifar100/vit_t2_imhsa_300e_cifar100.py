_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/cifar100.py',
    '../_base_/schedules/adamw_300e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    data_preprocessor=dict(
        num_classes=100,
        mean=[129.304, 124.07, 112.434],
        std=[68.17, 65.392, 70.418],
        to_rgb=False,
    ),
    # Written out, so that `model.backbone.arch.num_heads` can be overridden.
    backbone=dict(
        type='mmattn.ViT',
        arch=dict(embed_dims=192, depth=12, num_heads=3),
        attention='imhsa',
        patch_size=2,
        img_size=32,
        drop_path_rate=0.1,
    ),
    head=dict(num_classes=100, in_channels=192),
)
