_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_448.py',
    '../_base_/schedules/adamw_30e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.ViT',
        arch='tiny',
        attention='mhsa',
        patch_size=16,
        img_size=448,
        drop_path_rate=0.1,
    ),
    head=dict(in_channels=192),
)
# What the config at 224 pixels ends with; the position embedding is resized.
load_from = 'work_dirs/vit_t16_mhsa_300e_in1k/epoch_300.pth'
