_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/adamw_300e_warmup50.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(type='mmattn.DAT', arch='base', drop_path_rate=0.5, out_indices=3),
    head=dict(in_channels=1024),
)
