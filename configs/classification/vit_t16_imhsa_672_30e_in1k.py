_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_672.py',
    '../_base_/schedules/adamw_30e.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.ViT',
        arch='tiny',
        attention='imhsa',
        patch_size=16,
        img_size=672,
        drop_path_rate=0.1,
    ),
    head=dict(in_channels=192),
)
# The checkpoint of the config at 224 pixels; the position embedding is resized.
load_from = 'work_dirs/vit_t16_imhsa_300e_in1k/epoch_300.pth'
