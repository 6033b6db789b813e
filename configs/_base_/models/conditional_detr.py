# Conditional DETR as in mmdetection: DETR with 300 queries, whose cross-attention
# scores contents and positions apart. Leaves set the backbone, which gives its last
# map, and `neck.in_channels`.
_base_ = './detr.py'
attention = dict(_delete_=True, embed_dims=256, num_heads=8, attn_drop=0.1)
model = dict(
    type='ConditionalDETR',
    num_queries=300,
    data_preprocessor=dict(pad_size_divisor=1),
    decoder=dict(
        layer_cfg=dict(
            self_attn_cfg=dict(cross_attn=False, **attention),
            cross_attn_cfg=dict(cross_attn=True, **attention),
        ),
    ),
    bbox_head=dict(
        type='ConditionalDETRHead',
        loss_cls=dict(
            _delete_=True,
            type='FocalLoss',
            use_sigmoid=True,
            gamma=2.0,
            alpha=0.25,
            loss_weight=2.0,
        ),
    ),
    train_cfg=dict(
        assigner=dict(
            match_costs=[
                dict(type='FocalLossCost', weight=2.0),
                dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.0),
            ],
        )
    ),
)
del attention
