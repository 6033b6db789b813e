# UperNet for land cover, with 64 channels so that it trains on a CPU. It has group
# norm, since batch norm of a globally pooled map sees one value per image and channel.
# The mean, the deviation and the class weights (inverse square roots of the shares)
# come from the training tiles.
num_classes = 17
channels = 64
norm_cfg = dict(type='GN', num_groups=8, requires_grad=True)
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[84.0, 93.0, 96.0],
        std=[85.0, 77.0, 78.0],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size_divisor=32,
        test_cfg=dict(size_divisor=32),
    ),
    decode_head=dict(
        type='UPerHead',
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=channels,
        dropout_ratio=0.0,
        num_classes=num_classes,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(
            type='CrossEntropyLoss',
            use_sigmoid=False,
            class_weight=[
                *(0.48, 3.13, 1.65, 8.58, 3.78, 2.28, 7.99, 1.25, 1.5),
                *(1.32, 0.92, 4.56, 1.5, 6.75, 5.56, 0.91, 1.16),
            ],
        ),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
