# Cascade Mask R-CNN with a feature pyramid, as in mmdetection, and with Swin's box
# heads: four convolutions with batch norm, the GIoU loss, and a box for each class.
# Leaves set the backbone and `neck.in_channels`.
_base_ = './mask_rcnn_fpn.py'
norm_cfg = dict(type='SyncBN', requires_grad=True)
# mmengine leaves names with two leading underscores out of the config.
__box_head = dict(
    type='ConvFCBBoxHead',
    num_shared_convs=4,
    num_shared_fcs=1,
    in_channels=256,
    conv_out_channels=256,
    fc_out_channels=1024,
    roi_feat_size=7,
    num_classes=80,
    reg_decoded_bbox=True,
    norm_cfg=norm_cfg,
    loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=False),
    loss_bbox=dict(type='GIoULoss', loss_weight=10.0),
)
__coder = dict(type='DeltaXYWHBBoxCoder')
__assigner = dict(type='MaxIoUAssigner', match_low_quality=False, ignore_iof_thr=-1)
__samples = dict(
    sampler=dict(
        type='RandomSampler', num=512, pos_fraction=0.25, add_gt_as_proposals=True
    ),
    mask_size=28,
    pos_weight=-1,
    debug=False,
)
model = dict(
    type='CascadeRCNN',
    # beta = 1 / 9
    rpn_head=dict(loss_bbox=dict(type='SmoothL1Loss', beta=0.1111111111111111)),
    roi_head=dict(
        type='CascadeRoIHead',
        num_stages=3,
        stage_loss_weights=[1, 0.5, 0.25],
        bbox_head=[
            dict(
                bbox_coder=dict(target_stds=[0.1, 0.1, 0.2, 0.2], **__coder),
                **__box_head,
            ),
            dict(
                bbox_coder=dict(target_stds=[0.05, 0.05, 0.1, 0.1], **__coder),
                **__box_head,
            ),
            dict(
                bbox_coder=dict(target_stds=[0.033, 0.033, 0.067, 0.067], **__coder),
                **__box_head,
            ),
        ],
    ),
    train_cfg=dict(
        rpn=dict(allowed_border=0),
        rpn_proposal=dict(max_per_img=2000),
        rcnn=[
            dict(
                assigner=dict(
                    pos_iou_thr=0.5, neg_iou_thr=0.5, min_pos_iou=0.5, **__assigner
                ),
                **__samples,
            ),
            dict(
                assigner=dict(
                    pos_iou_thr=0.6, neg_iou_thr=0.6, min_pos_iou=0.6, **__assigner
                ),
                **__samples,
            ),
            dict(
                assigner=dict(
                    pos_iou_thr=0.7, neg_iou_thr=0.7, min_pos_iou=0.7, **__assigner
                ),
                **__samples,
            ),
        ],
    ),
)
