"""Describe each method's network, losses and test, without backbone and neck.

Segmentors are written down from mmsegmentation 1: `fpn_r50`, `upernet_swin`, which
PVT and DAT-Segmentation repeat, and `mask2former_r50`. Detectors are in
`recipe_detectors.py`.
"""

from recipe_detectors import (
    ATSS,
    CASCADE_MASK_RCNN,
    DEFORMABLE_DETR,
    DETR,
    GFL,
    IMAGENET,
    MASK_RCNN,
    RELU,
    RETINANET,
    SOFTMAX,
    SPARSE_RCNN,
)

SEGMENTOR = IMAGENET | dict(
    type='SegDataPreProcessor',
    bgr_to_rgb=True,
    pad_val=0,
    seg_pad_val=255,
    size=(512, 512),
)
SYNC_BN = dict(type='SyncBN', requires_grad=True)
DECODE_HEAD = dict(
    in_index=(0, 1, 2, 3),
    dropout_ratio=0.1,
    num_classes=150,
    norm_cfg=SYNC_BN,
    align_corners=False,
    loss_decode=SOFTMAX,
)
WHOLE = dict(train_cfg={}, test_cfg=dict(mode='whole'))
SEM_FPN = WHOLE | dict(
    type='EncoderDecoder',
    data_preprocessor=SEGMENTOR,
    decode_head=DECODE_HEAD
    | dict(
        type='FPNHead',
        in_channels=(256,) * 4,
        feature_strides=(4, 8, 16, 32),
        channels=128,
    ),
)
UPERNET = WHOLE | dict(
    type='EncoderDecoder',
    data_preprocessor=SEGMENTOR,
    decode_head=DECODE_HEAD
    | dict(type='UPerHead', pool_scales=(1, 2, 3, 6), channels=512),
    auxiliary_head=DECODE_HEAD
    | dict(
        type='FCNHead',
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        loss_decode=SOFTMAX | dict(loss_weight=0.4),
    ),
)


def mask_loss(kind: str, weight: float, sigmoid: bool, **settings) -> dict:
    return dict(
        type=f'mmdet.{kind}',
        use_sigmoid=sigmoid,
        reduction='mean',
        loss_weight=weight,
        **settings,
    )


MASK2FORMER_ATTENTION = dict(embed_dims=256, num_heads=8, batch_first=True)
DICE = dict(eps=1, naive_dice=True, activate=True)
MASK2FORMER_HEAD = dict(
    type='Mask2FormerHead',
    feat_channels=256,
    out_channels=256,
    num_classes=150,
    num_queries=100,
    num_transformer_feat_level=3,
    align_corners=False,
    pixel_decoder=dict(
        type='mmattn.Mask2FormerPixelDecoder',
        num_outs=3,
        encoder=dict(
            num_layers=6,
            layer_cfg=dict(
                self_attn_cfg=dict(num_heads=8, num_levels=3, num_points=4, dropout=0),
                ffn_cfg=dict(feedforward_channels=1024, ffn_drop=0),
            ),
        ),
    ),
    positional_encoding=dict(num_feats=128, normalize=True),
    transformer_decoder=dict(
        return_intermediate=True,
        num_layers=9,
        layer_cfg=dict(
            self_attn_cfg=MASK2FORMER_ATTENTION,
            cross_attn_cfg=MASK2FORMER_ATTENTION,
            ffn_cfg=dict(
                embed_dims=256,
                feedforward_channels=2048,
                num_fcs=2,
                ffn_drop=0,
                act_cfg=RELU,
            ),
        ),
        init_cfg=None,
    ),
    loss_cls=mask_loss('CrossEntropyLoss', 2, False, class_weight=(1,) * 150 + (0.1,)),
    loss_mask=mask_loss('CrossEntropyLoss', 5, True),
    loss_dice=mask_loss('DiceLoss', 5, True, **DICE),
    train_cfg=dict(
        num_points=12544,
        oversample_ratio=3,
        importance_sample_ratio=0.75,
        assigner=dict(
            type='mmdet.HungarianAssigner',
            match_costs=(
                dict(type='mmdet.ClassificationCost', weight=2),
                dict(type='mmdet.CrossEntropyLossCost', weight=5, use_sigmoid=True),
                dict(type='mmdet.DiceCost', weight=5, pred_act=True, eps=1),
            ),
        ),
        sampler=dict(type='mmdet.MaskPseudoSampler'),
    ),
)
MASK2FORMER = WHOLE | dict(
    type='EncoderDecoder',
    data_preprocessor=SEGMENTOR | dict(test_cfg=dict(size_divisor=32)),
    decode_head=MASK2FORMER_HEAD,
)

# DeiT's losses and mixing, which Swin, PVT and CAFormer share.
CLASSIFIER = dict(
    type='ImageClassifier',
    data_preprocessor=IMAGENET
    | dict(type='ClsDataPreprocessor', num_classes=1000, to_rgb=True),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    train_cfg=dict(
        augments=(dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1))
    ),
)
MODELS = {
    'classification': CLASSIFIER,
    'mask_rcnn': MASK_RCNN,
    'cascade_mask_rcnn': CASCADE_MASK_RCNN,
    'sparse_rcnn': SPARSE_RCNN,
    'retinanet': RETINANET,
    'atss': ATSS,
    'gfl': GFL,
    'detr': DETR,
    'deformable_detr': DEFORMABLE_DETR,
    'sem_fpn': SEM_FPN,
    'upernet': UPERNET,
    'mask2former': MASK2FORMER,
}
# Settings that differ in some configs, by pattern; dotted names are paths.
LEVELS = {'encoder.num_levels': 1, 'decoder.num_levels': 1}
IN_21K = {'data_preprocessor.num_classes': 21841, 'head.num_classes': 21841}
OTHERWISE = {
    'deformable_detr/*_refine_50e_coco': {'decoder.with_box_refine': True},
    'deformable_detr/*_two_stage_50e_coco': {
        'decoder.with_box_refine': True,
        'decoder.as_two_stage': True,
    },
    'deformable_detr/*_single_scale*': LEVELS,
    # Appendix A.2 of arXiv 2211.16289 refers to ConvNeXt's fine-tuning, which mixes no
    # images and scales the head to a thousandth.
    'classification/hylisanet_*_in21k': IN_21K,
    'classification/hylisanet_*_in21k_30e_in1k': {
        'train_cfg': None,
        'head.init_cfg.std': 2e-5,
    },
    # DeiT's teacher.
    'classification/mait_xt_distilled_400e_in1k': {
        'type': 'mmattn.DistilledClassifier',
        'head.type': 'DeiTClsHead',
        'teacher.type': 'TimmClassifier',
        'teacher.model_name': 'regnety_160.deit_in1k',
        'teacher.pretrained': True,
    },
}
