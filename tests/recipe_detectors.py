"""Describe each detector's network, losses and test, without backbone and neck.

The sources are configs of mmdetection 3, whose heads PVT, DAT, DAT++ and Swin use:
`mask-rcnn_r50_fpn`, `cascade-mask-rcnn_r50_fpn` with the box heads of Swin's
`cascade_mask_rcnn_swin_*`, `retinanet_r50_fpn`, `atss_r50_fpn`, `gfl_r50_fpn`,
`sparse-rcnn_r50_fpn_300-proposals`, `detr_r50` and `deformable-detr_r50`; the settings
of the last are also those of the authors' `main.py`. DAT-Detection and PVT print the
same numbers in their own configs.
"""

# The mean and the deviation of ImageNet's pixels in RGB are the same for all.
IMAGENET = dict(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))


def detector(divisor: int = 32, **masks) -> dict:
    """Return the preprocessor of a detector, with padding to multiples of `divisor`."""
    kind = dict(type='DetDataPreprocessor', bgr_to_rgb=True, pad_size_divisor=divisor)
    return IMAGENET | kind | masks


BOXES = dict(type='DeltaXYWHBBoxCoder')
SOFTMAX = dict(type='CrossEntropyLoss', use_sigmoid=False)
BINARY = dict(type='CrossEntropyLoss', use_sigmoid=True)
FOCAL = dict(type='FocalLoss', use_sigmoid=True, gamma=2, alpha=0.25)
L1 = dict(type='L1Loss')


def giou(weight: float) -> dict:
    return dict(type='GIoULoss', loss_weight=weight)


def nms(threshold: float) -> dict:
    return dict(type='nms', iou_threshold=threshold)


def stds(center: float, size: float) -> dict:
    return BOXES | dict(target_stds=(center, center, size, size))


# Two-stage detectors.


def rpn_head(loss_bbox: dict) -> dict:
    anchors = dict(
        type='AnchorGenerator',
        scales=(8,),
        ratios=(0.5, 1, 2),
        strides=(4, 8, 16, 32, 64),
    )
    return dict(
        type='RPNHead',
        in_channels=256,
        feat_channels=256,
        anchor_generator=anchors,
        bbox_coder=BOXES,
        loss_cls=BINARY,
        loss_bbox=loss_bbox,
    )


def regions(side: int, sampling_ratio: int = 0) -> dict:
    return dict(
        type='SingleRoIExtractor',
        roi_layer=dict(
            type='RoIAlign', output_size=side, sampling_ratio=sampling_ratio
        ),
        out_channels=256,
        featmap_strides=(4, 8, 16, 32),
    )


MASK_HEAD = dict(
    type='FCNMaskHead',
    num_convs=4,
    in_channels=256,
    conv_out_channels=256,
    num_classes=80,
    loss_mask=dict(type='CrossEntropyLoss', use_mask=True),
)
BOX_HEAD = dict(
    in_channels=256, fc_out_channels=1024, roi_feat_size=7, num_classes=80
) | dict(loss_cls=SOFTMAX)


def assigner(positive: float, negative: float, least: float, low: bool) -> dict:
    return dict(
        type='MaxIoUAssigner',
        pos_iou_thr=positive,
        neg_iou_thr=negative,
        min_pos_iou=least,
        match_low_quality=low,
        ignore_iof_thr=-1,
    )


def sampler(num: int, fraction: float, with_truth: bool) -> dict:
    return dict(
        type='RandomSampler',
        num=num,
        pos_fraction=fraction,
        add_gt_as_proposals=with_truth,
    )


def rcnn(threshold: float, low: bool) -> dict:
    return dict(
        assigner=assigner(threshold, threshold, threshold, low),
        sampler=sampler(512, 0.25, True),
        mask_size=28,
        pos_weight=-1,
    )


def proposals(before: int, after: int) -> dict:
    return dict(nms_pre=before, max_per_img=after, nms=nms(0.7), min_bbox_size=0)


def two_stage(border: int, kept: int, rcnn: dict | tuple) -> dict:
    """Return `train_cfg` and `test_cfg`."""
    rpn = dict(
        assigner=assigner(0.7, 0.3, 0.3, True),
        sampler=sampler(256, 0.5, False),
        allowed_border=border,
        pos_weight=-1,
    )
    test = dict(score_thr=0.05, nms=nms(0.5), max_per_img=100, mask_thr_binary=0.5)
    return dict(
        train_cfg=dict(rpn=rpn, rpn_proposal=proposals(2000, kept), rcnn=rcnn),
        test_cfg=dict(rpn=proposals(1000, 1000), rcnn=test),
    )


MASK_RCNN = dict(
    type='MaskRCNN',
    data_preprocessor=detector(pad_mask=True),
    rpn_head=rpn_head(L1),
    roi_head=dict(
        type='StandardRoIHead',
        bbox_roi_extractor=regions(7),
        bbox_head=BOX_HEAD
        | dict(type='Shared2FCBBoxHead', bbox_coder=stds(0.1, 0.2), loss_bbox=L1),
        mask_roi_extractor=regions(14),
        mask_head=MASK_HEAD,
    ),
    **two_stage(-1, 1000, rcnn(0.5, True)),
)
CASCADE_STDS = stds(0.1, 0.2), stds(0.05, 0.1), stds(0.033, 0.067)
CASCADE_HEAD = BOX_HEAD | dict(
    type='ConvFCBBoxHead',
    num_shared_convs=4,
    num_shared_fcs=1,
    conv_out_channels=256,
    reg_decoded_bbox=True,
    norm_cfg=dict(type='SyncBN', requires_grad=True),
    loss_bbox=giou(10),
)
CASCADE_MASK_RCNN = dict(
    type='CascadeRCNN',
    data_preprocessor=detector(pad_mask=True),
    rpn_head=rpn_head(dict(type='SmoothL1Loss', beta=1 / 9)),
    roi_head=dict(
        type='CascadeRoIHead',
        num_stages=3,
        stage_loss_weights=(1, 0.5, 0.25),
        bbox_roi_extractor=regions(7),
        bbox_head=tuple(
            CASCADE_HEAD | dict(bbox_coder=coder) for coder in CASCADE_STDS
        ),
        mask_roi_extractor=regions(14),
        mask_head=MASK_HEAD,
    ),
    **two_stage(0, 2000, tuple(rcnn(iou, False) for iou in (0.5, 0.6, 0.7))),
)
HUNGARIAN = dict(type='HungarianAssigner')


def matching(classes: dict, boxes: str) -> dict:
    """Return the assigner with costs of 2, 5 and 2."""
    costs = (
        dict(type='FocalLossCost', weight=2) | classes,
        dict(type='BBoxL1Cost', weight=5, box_format=boxes),
        dict(type='IoUCost', iou_mode='giou', weight=2),
    )
    return HUNGARIAN | dict(match_costs=costs)


RELU = dict(type='ReLU')
SET_LOSSES = dict(
    loss_cls=FOCAL | dict(loss_weight=2),
    loss_bbox=L1 | dict(loss_weight=5),
    loss_iou=giou(2),
)
SPARSE_HEAD = SET_LOSSES | dict(
    type='DIIHead',
    num_classes=80,
    num_ffn_fcs=2,
    num_heads=8,
    num_cls_fcs=1,
    num_reg_fcs=3,
    feedforward_channels=2048,
    in_channels=256,
    dropout=0,
    ffn_act_cfg=RELU,
    dynamic_conv_cfg=dict(
        type='DynamicConv',
        in_channels=256,
        feat_channels=64,
        out_channels=256,
        input_feat_shape=7,
        act_cfg=RELU,
        norm_cfg=dict(type='LN'),
    ),
    bbox_coder=stds(0.5, 1) | dict(clip_border=False),
)
SPARSE_MATCHING = dict(
    assigner=matching({}, 'xyxy'), sampler=dict(type='PseudoSampler'), pos_weight=1
)
SPARSE_RCNN = dict(
    type='SparseRCNN',
    data_preprocessor=detector(),
    rpn_head=dict(
        type='EmbeddingRPNHead', num_proposals=300, proposal_feature_channel=256
    ),
    roi_head=dict(
        type='SparseRoIHead',
        num_stages=6,
        stage_loss_weights=(1,) * 6,
        proposal_feature_channel=256,
        bbox_roi_extractor=regions(7, sampling_ratio=2),
        bbox_head=(SPARSE_HEAD,) * 6,
    ),
    train_cfg=dict(rpn=None, rcnn=(SPARSE_MATCHING,) * 6),
    test_cfg=dict(rpn=None, rcnn=dict(max_per_img=300)),
)

# One-stage detectors.


def dense_test(threshold: float) -> dict:
    return dict(
        nms_pre=1000,
        min_bbox_size=0,
        score_thr=0.05,
        nms=nms(threshold),
        max_per_img=100,
    )


def dense_head(kind: str, scale: int, octaves: int, ratios: tuple) -> dict:
    anchors = dict(
        type='AnchorGenerator',
        octave_base_scale=scale,
        scales_per_octave=octaves,
        ratios=ratios,
        strides=(8, 16, 32, 64, 128),
    )
    return dict(
        type=kind,
        num_classes=80,
        in_channels=256,
        stacked_convs=4,
        feat_channels=256,
        anchor_generator=anchors,
    )


OPEN_BORDER = dict(allowed_border=-1, pos_weight=-1)
RETINANET = dict(
    type='RetinaNet',
    data_preprocessor=detector(),
    bbox_head=dense_head('RetinaHead', 4, 3, (0.5, 1, 2))
    | dict(bbox_coder=BOXES, loss_cls=FOCAL, loss_bbox=L1),
    train_cfg=OPEN_BORDER
    | dict(
        assigner=dict(
            type='MaxIoUAssigner',
            pos_iou_thr=0.5,
            neg_iou_thr=0.4,
            min_pos_iou=0,
            ignore_iof_thr=-1,
        ),
        sampler=dict(type='PseudoSampler'),
    ),
    test_cfg=dense_test(0.5),
)
NEAREST_NINE = OPEN_BORDER | dict(assigner=dict(type='ATSSAssigner', topk=9))
ATSS = dict(
    type='ATSS',
    data_preprocessor=detector(),
    bbox_head=dense_head('ATSSHead', 8, 1, (1,))
    | dict(bbox_coder=stds(0.1, 0.2), loss_cls=FOCAL, loss_bbox=giou(2))
    | dict(loss_centerness=BINARY),
    train_cfg=NEAREST_NINE,
    test_cfg=dense_test(0.6),
)
GFL = dict(
    type='GFL',
    data_preprocessor=detector(),
    bbox_head=dense_head('GFLHead', 8, 1, (1,))
    | dict(
        reg_max=16,
        loss_cls=dict(type='QualityFocalLoss', use_sigmoid=True, beta=2),
        loss_dfl=dict(type='DistributionFocalLoss', loss_weight=0.25),
        loss_bbox=giou(2),
    ),
    train_cfg=NEAREST_NINE,
    test_cfg=dense_test(0.6),
)
ATTENTION = dict(embed_dims=256, num_heads=8, dropout=0.1, batch_first=True)
DETR_LAYER = dict(
    self_attn_cfg=ATTENTION,
    ffn_cfg=dict(
        embed_dims=256,
        feedforward_channels=2048,
        num_fcs=2,
        ffn_drop=0.1,
        act_cfg=RELU | dict(inplace=True),
    ),
)
# As in PVT's `detr_pvt_s_8x2_50ep_coco`, which pads to multiples of 32.
DETR = dict(
    type='DETR',
    num_queries=100,
    data_preprocessor=detector(),
    encoder=dict(num_layers=6, layer_cfg=DETR_LAYER),
    decoder=dict(
        num_layers=6,
        layer_cfg=DETR_LAYER | dict(cross_attn_cfg=ATTENTION),
        return_intermediate=True,
    ),
    positional_encoding=dict(num_feats=128, normalize=True),
    bbox_head=dict(
        type='DETRHead',
        num_classes=80,
        embed_dims=256,
        loss_cls=SOFTMAX | dict(bg_cls_weight=0.1, loss_weight=1, class_weight=1),
        loss_bbox=L1 | dict(loss_weight=5),
        loss_iou=giou(2),
    ),
    train_cfg=dict(
        assigner=HUNGARIAN
        | dict(
            match_costs=(
                dict(type='ClassificationCost', weight=1),
                dict(type='BBoxL1Cost', weight=5, box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2),
            )
        )
    ),
    test_cfg=dict(max_per_img=100),
)
DEFORMABLE_LAYERS = dict(
    embed_dims=256,
    num_layers=6,
    num_heads=8,
    num_levels=4,
    num_points=4,
    feedforward_channels=1024,
    dropout=0.1,
)
DEFORMABLE_DETR = dict(
    type='mmattn.DeformableDETR',
    data_preprocessor=detector(divisor=1),
    encoder=DEFORMABLE_LAYERS | dict(type='mmattn.DeformableDETREncoder'),
    decoder=DEFORMABLE_LAYERS
    | dict(
        type='mmattn.DeformableDETRDecoder',
        num_queries=300,
        with_box_refine=False,
        as_two_stage=False,
    ),
    bbox_head=SET_LOSSES
    | dict(
        type='DeformableDETRHead',
        num_classes=80,
        embed_dims=256,
        sync_cls_avg_factor=True,
    ),
    train_cfg=dict(assigner=matching(dict(gamma=2, alpha=0.25), 'xywh')),
    test_cfg=dict(max_per_img=100),
)
