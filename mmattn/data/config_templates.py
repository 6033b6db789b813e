"""Texts of the configs that `own_config` fills in."""

ARCH = 'pvt_v2_b0'  # few parameters, and weights that anybody may use
FLIPS = {
    'horizontal': "dict(type='RandomFlip', prob=0.5),",
    'both': """dict(
        type='RandomFlip',
        prob=[0.25, 0.25, 0.25],
        direction=['horizontal', 'vertical', 'diagonal'],
    ),""",
}

RESIZE = """\
resize = dict(type='Resize', scale_factor=factor, keep_ratio=True)
# Training sees images smaller and larger, too.
jitter = dict(
    type='RandomChoice',
    transforms=[
        [dict(type='Resize', scale_factor=ratio * factor, keep_ratio=True)]
        for ratio in (0.75, 1.0, 1.33)
    ],
)"""

DETECTION = """\
# {method} with {arch} on {name}, written by mmattn data convert.
# {pictures}
_base_ = [
    'mmattn::_base_/models/mask_rcnn_fpn_light.py',
    'mmattn::_base_/datasets/{dataset}.py',
    'mmattn::_base_/schedules/demo.py',
    'mmattn::_base_/runtime/mmdet.py',
]
data_root = {root!r}
metainfo = dict(classes={classes!r})
num_classes = {num_classes}
# {resized}
# A smaller factor makes training faster. Anchors follow it.
factor = {factor!r}
{tiles}
model = dict(
    type={type!r},
{backbone}
    neck=dict(in_channels={channels!r}),
    # With factor = {factor}, anchors have {sides} pixels. The middle half of the
    # objects has sides of {low:.0f} to {high:.0f}.
    rpn_head=dict(anchor_generator=dict(scales=[{scale} * factor])),
    roi_head=dict(
        bbox_head=dict(num_classes=num_classes),
        {mask_head},
    ),
    # An image has up to {most} objects, and one of training up to {most_train}. The
    # limits of proposals and of objects an image leave room for them.
    train_cfg=dict(
        rpn=dict(assigner=dict(type='mmattn.MaxIoUAssigner')),
        rcnn=dict(assigner=dict(type='mmattn.MaxIoUAssigner')),
        rpn_proposal=dict(nms_pre={train_pre}, max_per_img={train_proposals}),
    ),
    test_cfg=dict(
        rpn=dict(nms_pre={proposals}, max_per_img={proposals}),
        rcnn=dict(max_per_img={max_per_img}),
    ),
)

{resize}
{load}
train_pipeline = [
    {load_image},
    load,
    jitter,
    # Training sees at most {crop} x {crop} pixels of an image, so that batches fit into
    # memory.
    dict(
        type='RandomCrop',
        crop_size=({crop}, {crop}),
        allow_negative_crop=True,
        recompute_bbox={has_masks},
    ),
    # Objects that the crop cuts away leave boxes without area, whose loss is NaN.
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1, 1), keep_empty=False),
    {flip}
    dict(type='PackDetInputs'),
]
test_pipeline = [
    {load_image},
    resize,
    load,
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
dataset = dict(data_root=data_root, metainfo=metainfo)
batch_size = {batch_size}
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=1,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='mmattn.CocoDataset',
        # {empty} of {images} images have no object. This is the largest share of them.
        background=0.1,
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='train/'),
        filter_cfg=dict(min_size=1),
        pipeline=train_pipeline,
        **dataset,
    ),
)
# The log has the AP of each class. The best checkpoint has the highest AP. AP counts
# as many detections of an image as one has objects, at least COCO's 100.
"""

DETECTION_PART = """\
{loop}_dataloader = dict(
    num_workers=1,
    dataset=dict(
        ann_file='annotations/instances_{split}.json',
        data_prefix=dict(img='{split}/'),
        pipeline=test_pipeline,
        **dataset,
    ),
)
{loop}_evaluator = dict(
    ann_file=data_root + 'annotations/instances_{split}.json', classwise=True
)
"""

SEGMENTATION = """\
# UperNet with {arch} on {name}, written by mmattn data convert.
# {pictures}
_base_ = [
    'mmattn::_base_/models/upernet_light.py',
    'mmattn::_base_/schedules/demo.py',
    'mmattn::_base_/runtime/mmseg.py',
]
data_root = {root!r}
metainfo = dict(
    classes={classes!r},
    palette={palette!r},
)
num_classes = {num_classes}
# {resized}
# A smaller factor makes training faster. Results have the size of the images.
factor = {factor!r}
{tiles}
model = dict(
{backbone}
    decode_head=dict(
        in_channels={channels!r},
        num_classes=num_classes,
        # Weights of the classes in the loss, larger for rare ones.
        loss_decode=dict(class_weight=None),
    ),
)

{resize}
train_pipeline = [
    {load_image},
    dict(type='LoadAnnotations'),
    jitter,
    # Training sees at most {crop} x {crop} pixels of an image, so that batches fit into
    # memory.
    dict(type='RandomCrop', crop_size=({crop}, {crop})),
    {flip}
    dict(type='PackSegInputs'),
]
# Label maps are loaded after the resize, so that results are measured at full size.
test_pipeline = [
    {load_image},
    resize,
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
tta_pipeline = [
    {load_image},
    dict(
        type='TestTimeAug',
        transforms=[
            [
                dict(type='Resize', scale_factor=ratio * factor, keep_ratio=True)
                for ratio in (0.75, 1.0, 1.25)
            ],
            [
                dict(type='RandomFlip', prob=prob, direction='horizontal')
                for prob in (0.0, 1.0)
            ],
            [dict(type='LoadAnnotations')],
            [dict(type='PackSegInputs')],
        ],
    ),
]
# A class of the number 0 is a class like others: reduce_zero_label=False.
dataset = dict(
    type='BaseSegDataset',
    data_root=data_root,
    metainfo=metainfo,
    img_suffix={suffix!r},
    seg_map_suffix='.png',
    reduce_zero_label=False,
)
batch_size = {batch_size}
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        data_prefix=dict(img_path='images/train', seg_map_path='labels/train'),
        pipeline=train_pipeline,
        **dataset,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        data_prefix=dict(img_path='images/val', seg_map_path='labels/val'),
        pipeline=test_pipeline,
        **dataset,
    ),
)
val_evaluator = [
    dict(type='IoUMetric', iou_metrics=['mIoU']),
    # The log ends with the IoU and accuracy of each class.
    dict(type='mmattn.LabelConfusion'),
]
"""

SEGMENTATION_TEST = """\
test_dataloader = dict(
    val_dataloader,
    dataset=dict(
        val_dataloader['dataset'],
        data_prefix=dict(img_path='images/{test}', seg_map_path='labels/{test}'),
        img_suffix={test_suffix!r},
    ),
)
test_evaluator = val_evaluator
"""

CLASSIFICATION = """\
# {arch} as a classifier of {name}, written by mmattn data convert.
# {pictures}
_base_ = [
    'mmattn::_base_/models/classifier.py',
    'mmattn::_base_/schedules/demo.py',
    'mmattn::_base_/runtime/mmpretrain.py',
]
data_root = {root!r}
metainfo = dict(classes={classes!r})
num_classes = {num_classes}
# The side that training and tests see.
size = {size}

model = dict(
{backbone}
    head=dict(in_channels={channels!r}, num_classes=num_classes),
    # Mixup and CutMix are for long schedules.
    train_cfg=dict(augments=None),
)

train_pipeline = [
    {load_image},
    dict(type='RandomResizedCrop', scale=size, crop_ratio_range=(0.35, 1.0)),
    {flip}
    dict(type='PackInputs'),
]
test_pipeline = [
    {load_image},
    dict(type='ResizeEdge', scale=size * 8 // 7, edge='short'),
    dict(type='CenterCrop', crop_size=size),
    dict(type='PackInputs'),
]
dataset = dict(
    type='CustomDataset', data_root=data_root, metainfo=metainfo, with_label=True
)
batch_size = {batch_size}
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=1,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(data_prefix='train', pipeline=train_pipeline, **dataset),
)
val_dataloader = dict(
    batch_size=batch_size,
    num_workers=1,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(data_prefix='val', pipeline=test_pipeline, **dataset),
)
val_evaluator = [
    dict(type='Accuracy', topk=(1,)),
    # The log ends with the precision and recall of each class.
    dict(type='mmattn.LabelConfusion'),
]
test_dataloader = dict(
    val_dataloader, dataset=dict(val_dataloader['dataset'], data_prefix={test!r})
)
test_evaluator = val_evaluator
"""

SAME_TEST = """\
test_dataloader = val_dataloader
test_evaluator = val_evaluator
"""

TILES = """\
# Images of training and validation are tiles of this side. Those of tests are whole:
# `mmattn test` with --tile cuts them and merges what is found.
tile = {tile}
overlap = {overlap}
"""

AVERAGE = """\
# Validated and saved are the weights averaged over about the last 5% of the iterations.
custom_hooks = [
    dict(
        type='EMAHook',
        ema_type='MomentumAnnealingEMA',
        momentum=1e-4,
        gamma=20,
        update_buffers=True,
    )
]
"""

SCHEDULE = """
# {reason}
max_iters = {max_iters}
train_cfg = dict(max_iters=max_iters, val_interval={interval})
optim_wrapper = dict(optimizer=dict(lr={lr}))
warm_up = {warm_up}
_base_.param_scheduler[0].end = warm_up
_base_.param_scheduler[1].update(
    begin=warm_up, end=max_iters, T_max=max_iters - warm_up
)
param_scheduler = _base_.param_scheduler
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=False),
    checkpoint=dict(
        by_epoch=False, interval={interval}, max_keep_ckpts=1, save_best={best!r}
    ),
)
log_processor = dict(by_epoch=False, window_size=10)
randomness = dict(seed=0)
# The learning rate is for this batch size. For another one pass --auto-scale-lr.
auto_scale_lr = dict(enable=False, base_batch_size={batch_size})
"""
