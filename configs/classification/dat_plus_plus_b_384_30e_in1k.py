_base_ = [
    '../_base_/models/classifier.py',
    '../_base_/datasets/imagenet_384.py',
    '../_base_/schedules/adamw_30e_dat.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    backbone=dict(
        type='mmattn.DATPlusPlus',
        arch='base',
        drop_path_rate=0.6,
        out_indices=3,
    ),
    head=dict(in_channels=1024),
)
train_dataloader = dict(batch_size=64)
# Tests use the whole image, without a center crop.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=384, backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
# The checkpoint of the config at 224 pixels, with its tables of positions.
load_from = 'work_dirs/dat_plus_plus_b_300e_in1k/epoch_300.pth'
