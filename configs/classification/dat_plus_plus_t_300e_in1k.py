_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_300e_warmup20.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.DATPlusPlus', arch='tiny', drop_path_rate=0.2, out_indices=3
    ),
    head=dict(in_channels=512),
)
optim_wrapper = dict(clip_grad=dict(max_norm=5.0))
