# Generalized focal loss as in mmdetection, with a feature pyramid that begins at the
# second map. Leaves set the backbone and `neck.in_channels`.
_base_ = './atss_fpn.py'
model = dict(
    type='GFL',
    bbox_head=dict(
        _delete_=True,
        type='GFLHead',
        num_classes=80,
        in_channels=256,
        stacked_convs=4,
        feat_channels=256,
        anchor_generator=dict(
            type='AnchorGenerator',
            ratios=[1.0],
            octave_base_scale=8,
            scales_per_octave=1,
            strides=[8, 16, 32, 64, 128],
        ),
        reg_max=16,
        loss_cls=dict(type='QualityFocalLoss', use_sigmoid=True, beta=2.0),
        loss_dfl=dict(type='DistributionFocalLoss', loss_weight=0.25),
        loss_bbox=dict(type='GIoULoss', loss_weight=2.0),
    ),
)
