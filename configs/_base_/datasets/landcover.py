# Land cover. `tools/datasets/landcover.py` writes 148 training and 35 validation tiles
# of 192x192 pixels with the 17 classes of the IGBP legend. `tta_pipeline` is the
# multi-scale test.
dataset_type = 'BaseSegDataset'
data_root = 'data/landcover/'
metainfo = dict(
    classes=(
        'water',
        'evergreen needleleaf forest',
        'evergreen broadleaf forest',
        'deciduous needleleaf forest',
        'deciduous broadleaf forest',
        'mixed forest',
        'closed shrubland',
        'open shrubland',
        'woody savanna',
        'savanna',
        'grassland',
        'permanent wetland',
        'cropland',
        'urban',
        'cropland mosaic',
        'snow and ice',
        'barren',
    ),
    palette=(
        (28, 13, 255),
        (5, 69, 10),
        (8, 106, 16),
        (84, 167, 8),
        (120, 210, 3),
        (0, 153, 0),
        (198, 176, 68),
        (220, 209, 89),
        (218, 222, 72),
        (251, 255, 19),
        (182, 255, 5),
        (39, 255, 135),
        (194, 79, 68),
        (165, 165, 165),
        (255, 109, 76),
        (105, 255, 248),
        (249, 255, 164),
    ),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(
        type='RandomFlip',
        prob=[0.25, 0.25, 0.25],
        direction=['horizontal', 'vertical', 'diagonal'],
    ),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [
                dict(type='Resize', scale=(144, 144), keep_ratio=True),
                dict(type='Resize', scale=(192, 192), keep_ratio=True),
                dict(type='Resize', scale=(256, 256), keep_ratio=True),
            ],
            [
                dict(type='RandomFlip', prob=0.0, direction='horizontal'),
                dict(type='RandomFlip', prob=1.0, direction='horizontal'),
            ],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]
train_dataloader = dict(
    batch_size=24,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        metainfo=metainfo,
        reduce_zero_label=False,
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'
        ),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        metainfo=metainfo,
        reduce_zero_label=False,
        data_prefix=dict(
            img_path='images/validation', seg_map_path='annotations/validation'
        ),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
