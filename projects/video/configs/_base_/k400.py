# Kinetics-400 as lists of videos: 16 frames at an interval of 4. The paper states the
# number of frames, dense sampling and tests of 4 clips and 1 crop. The interval and the
# augmentation follow UniFormer (https://arxiv.org/abs/2201.09450), whose recipe
# the paper follows. torchvision's RandAugment has neither the noise of the magnitude
# nor quite the operations of UniFormer's.
data_root = 'data/kinetics400'
mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]

train_pipeline = [
    dict(type='OpenVideo'),
    # Two clips of each video are UniFormer's repeated augmentation.
    dict(type='SampleDense', clip_len=16, interval=4, num_clips=2, training=True),
    dict(type='DecodeVideo'),
    dict(
        type='Torchvision',
        transforms=[
            dict(type='RandomResizedCrop', size=224, interpolation=3),
            dict(type='RandomHorizontalFlip'),
            dict(type='RandAugment', num_ops=4, magnitude=7, num_magnitude_bins=11),
        ],
    ),
    dict(type='NormalizeClips', mean=mean, std=std),
    dict(
        type='Torchvision',
        transforms=[dict(type='RandomErasing', p=0.25, value='random')],
    ),
    dict(type='PackClips'),
]
test_pipeline = [
    dict(type='OpenVideo'),
    dict(type='SampleDense', clip_len=16, interval=4, num_clips=4),
    dict(type='DecodeVideo'),
    dict(
        type='Torchvision',
        transforms=[
            dict(type='Resize', size=224, interpolation=3),
            dict(type='CenterCrop', size=224),
        ],
    ),
    dict(type='NormalizeClips', mean=mean, std=std),
    dict(type='PackClips'),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='VideoDataset',
        data_root=data_root,
        ann_file='kinetics400_train_list_videos.txt',
        data_prefix=dict(video_path='videos_train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='VideoDataset',
        data_root=data_root,
        ann_file='kinetics400_val_list_videos.txt',
        data_prefix=dict(video_path='videos_val'),
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='TopKAccuracy', topk=(1, 5))
test_evaluator = val_evaluator
