# DAB-DETR as in mmdetection: the 300 queries are boxes, which each decoder layer moves.
# Leaves set the backbone, which gives its last map, and `neck.in_channels`.
attention = dict(embed_dims=256, num_heads=8, attn_drop=0.0, proj_drop=0.0)
ffn = dict(
    embed_dims=256,
    feedforward_channels=2048,
    num_fcs=2,
    ffn_drop=0.0,
    act_cfg=dict(type='PReLU'),
)
model = dict(
    type='DABDETR',
    num_queries=300,
    with_random_refpoints=False,
    num_patterns=0,
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
        norm_cfg=None,
        act_cfg=None,
        num_outs=1,
    ),
    encoder=dict(
        num_layers=6,
        layer_cfg=dict(
            self_attn_cfg=dict(
                embed_dims=256, num_heads=8, dropout=0.0, batch_first=True
            ),
            ffn_cfg=ffn,
        ),
    ),
    decoder=dict(
        num_layers=6,
        query_dim=4,
        query_scale_type='cond_elewise',
        with_modulated_hw_attn=True,
        layer_cfg=dict(
            self_attn_cfg=dict(cross_attn=False, **attention),
            cross_attn_cfg=dict(cross_attn=True, **attention),
            ffn_cfg=ffn,
        ),
        return_intermediate=True,
    ),
    positional_encoding=dict(num_feats=128, temperature=20, normalize=True),
    bbox_head=dict(
        type='DABDETRHead',
        num_classes=80,
        embed_dims=256,
        loss_cls=dict(
            type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0
        ),
        loss_bbox=dict(type='L1Loss', loss_weight=5.0),
        loss_iou=dict(type='GIoULoss', loss_weight=2.0),
    ),
    train_cfg=dict(
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='FocalLossCost', weight=2.0, eps=1e-8),
                dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.0),
            ],
        )
    ),
    test_cfg=dict(max_per_img=300),
)
del attention, ffn
