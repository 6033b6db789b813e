# A backbone's last map, its mean over the pixels, and one linear layer. Leaves give the
# backbone, the neck where it is another one, and `head.in_channels`.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True,
    ),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    # As in DeiT, the parameters of the Beta distributions; each batch gets one of the
    # two. (The table of iViT's paper calls 0.8 and 1 probabilities.)
    train_cfg=dict(
        augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]
    ),
)
