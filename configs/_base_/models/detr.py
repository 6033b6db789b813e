# DETR as in mmdetection, with 100 queries. Leaves set the backbone, which gives its
# last map, and `neck.in_channels`.
layer = dict(
    self_attn_cfg=dict(embed_dims=256, num_heads=8, dropout=0.1, batch_first=True),
    ffn_cfg=dict(
        embed_dims=256,
        feedforward_channels=2048,
        num_fcs=2,
        ffn_drop=0.1,
        act_cfg=dict(type='ReLU', inplace=True),
    ),
)
model = dict(
    type='DETR',
    num_queries=100,
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    neck=dict(
        type='ChannelMapper',
        kernel_size=1,
        out_channels=256,
        norm_cfg=None,
        act_cfg=None,
        num_outs=1,
    ),
    encoder=dict(num_layers=6, layer_cfg=layer),
    decoder=dict(
        num_layers=6,
        layer_cfg=dict(
            cross_attn_cfg=dict(
                embed_dims=256, num_heads=8, dropout=0.1, batch_first=True
            ),
            **layer,
        ),
        return_intermediate=True,
    ),
    positional_encoding=dict(num_feats=128, normalize=True),
    bbox_head=dict(
        type='DETRHead',
        num_classes=80,
        embed_dims=256,
        loss_cls=dict(
            type='CrossEntropyLoss',
            bg_cls_weight=0.1,
            use_sigmoid=False,
            loss_weight=1.0,
            class_weight=1.0,
        ),
        loss_bbox=dict(type='L1Loss', loss_weight=5.0),
        loss_iou=dict(type='GIoULoss', loss_weight=2.0),
    ),
    train_cfg=dict(
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='ClassificationCost', weight=1.0),
                dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.0),
            ],
        )
    ),
    test_cfg=dict(max_per_img=100),
)
del layer
