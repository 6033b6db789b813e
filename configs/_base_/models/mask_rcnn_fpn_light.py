# Mask R-CNN for small images of small objects: 128 channels, strides 4 to 32, anchors
# of scale 4, and fewer sampled regions, so that it trains on a CPU.
_base_ = './mask_rcnn_fpn.py'
num_classes = 1
channels = 128
model = dict(
    data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[63.75, 63.75, 63.75]),
    neck=dict(out_channels=channels, num_outs=4),
    rpn_head=dict(
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32]),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=2), out_channels=channels
        ),
        bbox_head=dict(
            in_channels=channels, fc_out_channels=512, num_classes=num_classes
        ),
        mask_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=2), out_channels=channels
        ),
        mask_head=dict(
            num_convs=2,
            in_channels=channels,
            conv_out_channels=channels,
            num_classes=num_classes,
        ),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=1000, max_per_img=500),
        rcnn=dict(sampler=dict(num=128)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=300)),
)
