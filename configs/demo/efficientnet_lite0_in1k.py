# EfficientNet-Lite0 of timm, with the ImageNet weights that
# `tools/converters/efficientnet_lite0.py` writes.
_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_300e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    # From -1 to 1.
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5]),
    backbone=dict(type='TIMMBackbone', model_name='tf_efficientnet_lite0'),
    head=dict(in_channels=1280),
)
