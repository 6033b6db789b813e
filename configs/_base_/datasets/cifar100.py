# CIFAR-100 with the augmentation of imagenet_224.py at 32 pixels, where padded crops
# replace resized ones. mmpretrain's class downloads the data. Its images and the colors
# to fill with are RGB.
dataset_type = 'CIFAR100'
data_root = 'data/cifar100'

train_pipeline = [
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        total_level=10,
        magnitude_level=9,
        magnitude_std=0.5,
        hparams=dict(pad_val=[129, 124, 112], interpolation='bicubic'),
    ),
    dict(
        type='RandomErasing',
        erase_prob=0.25,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=0.3333,
        fill_color=[129.304, 124.07, 112.434],
        fill_std=[68.17, 65.392, 70.418],
    ),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='PackInputs')]
# 8 GPUs give a batch of 1024.
train_dataloader = dict(
    batch_size=128,
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type=dataset_type, data_root=data_root, split='train', pipeline=train_pipeline
    ),
)
val_dataloader = dict(
    batch_size=256,
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type, data_root=data_root, split='test', pipeline=test_pipeline
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
