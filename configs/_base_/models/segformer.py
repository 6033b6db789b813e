# SegFormer as in mmsegmentation: a head of 256 channels that projects each level, joins
# them at stride 4 and predicts. Leaves set the backbone and `in_channels`.
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    decode_head=dict(
        type='SegformerHead',
        in_index=[0, 1, 2, 3],
        channels=256,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
