# Appendix B, Table 14: LiSANet-I from scratch, 8 frames, uniform sampling, 60 epochs.
# Another mixer of the table: --cfg-options model.backbone.mixer=depthwise
_base_ = ['_base_/video.py', '_base_/k400.py', '_base_/adamw_110e_k400.py']
data_root = 'data/sthv2'
model = dict(
    backbone=dict(arch='isotropic', num_frames=8, out_indices=-1, out_norm=True),
    neck=dict(_delete_=True, type='AveragePool'),
    head=dict(num_classes=174, in_channels=192),
    label_smoothing=0.1,
    mixup=0.8,
    cutmix=1.0,
)
# Classes tell left from right, so clips are not flipped. The paper does not state the
# augmentation; the rest is the same as for K400.
train_pipeline = _base_.train_pipeline
train_pipeline[1] = dict(type='SampleUniform', clip_len=8, num_clips=2, training=True)
train_pipeline[3] = dict(
    type='Torchvision',
    transforms=[
        dict(type='RandomResizedCrop', size=224, interpolation=3),
        dict(type='RandAugment', num_ops=4, magnitude=7, num_magnitude_bins=11),
    ],
)
test_pipeline = _base_.test_pipeline
test_pipeline[1] = dict(type='SampleUniform', clip_len=8)
# The layout of the official download: labels/*.json and the videos in one folder.
train_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        ann_file='labels/train.json',
        label_file='labels/labels.json',
        data_prefix=dict(video_path='20bn-something-something-v2'),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        ann_file='labels/validation.json',
        label_file='labels/labels.json',
        data_prefix=dict(video_path='20bn-something-something-v2'),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=60)
# 0.0002 / 32 times the batch of 64 videos
optim_wrapper = dict(optimizer=dict(lr=4e-4))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=2.5e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        begin=5,
        end=60,
        T_max=55,
        eta_min=1e-6,
        convert_to_iter_based=True,
    ),
]
