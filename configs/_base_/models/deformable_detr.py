# Deformable DETR with 300 queries, and six encoder and six decoder layers on maps of
# strides 8 to 64. Leaves set the backbone, which gives its last three maps, and
# `neck.in_channels`. `decoder` switches box refinement and the second stage on.
model = dict(
    type='mmattn.DeformableDETR',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=1,
    ),
    neck=dict(
        type='ChannelMapper',
        kernel_size=1,
        out_channels=256,
        bias=True,  # as in the authors' convolutions
        norm_cfg=dict(type='GN', num_groups=32),
        act_cfg=None,
        num_outs=4,
    ),
    encoder=dict(
        type='mmattn.DeformableDETREncoder',
        embed_dims=256,
        num_layers=6,
        num_heads=8,
        num_levels=4,
        num_points=4,
        feedforward_channels=1024,
        dropout=0.1,
    ),
    decoder=dict(
        type='mmattn.DeformableDETRDecoder',
        embed_dims=256,
        num_queries=300,
        num_layers=6,
        num_heads=8,
        num_levels=4,
        num_points=4,
        feedforward_channels=1024,
        dropout=0.1,
        with_box_refine=False,
        as_two_stage=False,
    ),
    bbox_head=dict(
        type='DeformableDETRHead',
        num_classes=80,
        embed_dims=256,
        sync_cls_avg_factor=True,
        loss_cls=dict(
            type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=2.0
        ),
        loss_bbox=dict(type='L1Loss', loss_weight=5.0),
        loss_iou=dict(type='GIoULoss', loss_weight=2.0),
    ),
    train_cfg=dict(
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='FocalLossCost', weight=2.0, gamma=2.0, alpha=0.25),
                dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.0),
            ],
        )
    ),
    test_cfg=dict(max_per_img=100),
)
