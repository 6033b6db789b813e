# How fast does the clip play? 8 frames of the clips of ../playback_speed.py. The
# network is a HyLiSANet small enough for minutes on a CPU.
_base_ = '_base_/video.py'
data_root = 'data/playback_speed'
mean, std = [155.0] * 3, [55.0] * 3
max_iters = 300

model = dict(
    backbone=dict(
        arch=dict(
            embed_dims=(16, 32, 64),
            depths=(1, 1, 2),
            mlp_ratios=(2, 2, 2),
            conv_stages=2,
            patterns=8,
        ),
        num_frames=8,
        img_size=64,
        out_indices=2,
    ),
    neck=dict(in_channels=64),
    head=dict(num_classes=3, in_channels=256),
)
train_pipeline = [
    dict(type='OpenVideo'),
    dict(type='SampleDense', clip_len=8, training=True),
    dict(type='DecodeVideo'),
    dict(
        type='Torchvision',
        transforms=[
            dict(type='RandomCrop', size=64),
            dict(type='RandomHorizontalFlip'),
        ],
    ),
    dict(type='NormalizeClips', mean=mean, std=std),
    dict(type='PackClips'),
]
test_pipeline = [
    dict(type='OpenVideo'),
    dict(type='SampleDense', clip_len=8),
    dict(type='DecodeVideo'),
    dict(type='NormalizeClips', mean=mean, std=std),
    dict(type='PackClips'),
]
train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='VideoDataset',
        data_root=data_root,
        ann_file='train.txt',
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=16,
    num_workers=0,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='VideoDataset',
        data_root=data_root,
        ann_file='val.txt',
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='TopKAccuracy', topk=(1,))
test_evaluator = val_evaluator
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=100)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    constructor='mmattn.LayerDecayOptimWrapperConstructor',
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(
        type='CosineAnnealingLR',
        by_epoch=False,
        begin=20,
        end=max_iters,
        T_max=max_iters - 20,
        eta_min_ratio=0.01,
    ),
]
default_hooks = dict(
    logger=dict(interval=20, log_metric_by_epoch=False),
    checkpoint=dict(
        by_epoch=False, interval=max_iters, max_keep_ckpts=1, save_best=None
    ),
)
log_processor = dict(by_epoch=False, window_size=20)
randomness = dict(seed=0)
