"""Write a config that trains on a data set that `convert.py` made."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mmattn.errors import UserError

from ..images.draw import class_colors
from .own_data import Picture, image_size

# Channels of IViT's four maps.
CHANNELS = {
    'nano': (32, 64, 160, 256),
    'tiny': (64, 128, 320, 512),
    'small': (64, 128, 320, 512),
    'base': (96, 192, 384, 576),
}
LONG, SHORT = 1333, 800  # largest image that is not shrunk
CROP = 512  # pixels of a training crop
FEWEST, MOST = 300, 3000  # iterations
EPOCHS = 30

DETECTION = """\
# {method} with IViT-{arch} on {name}, written by mmattn data convert.
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

model = dict(
    type={type!r},
    # Without published weights the network starts from random ones.
    backbone=dict(type='mmattn.IViT', arch={arch!r}),
    neck=dict(in_channels={channels!r}),
    # With factor = {factor}, anchors have {sides} pixels. The middle half of the
    # objects has sides of {low:.0f} to {high:.0f}.
    rpn_head=dict(anchor_generator=dict(scales=[{scale} * factor])),
    roi_head=dict(
        bbox_head=dict(num_classes=num_classes),
        {mask_head},
    ),
    # An image has up to {most} objects. COCO's AP counts the best 100 of an image.
    test_cfg=dict(rcnn=dict(max_per_img={max_per_img})),
)

resize = dict(type='Resize', scale_factor=factor, keep_ratio=True)
load = dict(type='LoadAnnotations', with_bbox=True{with_mask})
train_pipeline = [
    dict(type='LoadImageFromFile'),
    load,
    resize,
    # Training sees at most {crop} x {crop} pixels of an image, so that batches fit into
    # memory.
    dict(
        type='RandomCrop',
        crop_size=({crop}, {crop}),
        allow_negative_crop=True,
        recompute_bbox={has_masks},
    ),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
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
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='val/'),
        pipeline=test_pipeline,
        **dataset,
    ),
)
test_dataloader = val_dataloader
# The log has the AP of each class. The best checkpoint has the highest AP.
val_evaluator = dict(
    ann_file=data_root + 'annotations/instances_val.json', classwise=True
)
test_evaluator = val_evaluator
"""

SEGMENTATION = """\
# UperNet with IViT-{arch} on {name}, written by mmattn data convert.
# {pictures}
_base_ = [
    'mmattn::_base_/models/upernet_light.py',
    'mmattn::_base_/datasets/landcover.py',
    'mmattn::_base_/schedules/demo.py',
    'mmattn::_base_/runtime/mmseg.py',
]
data_root = {root!r}
metainfo = dict(
    classes={classes!r},
    palette={palette!r},
)
num_classes = {num_classes}

model = dict(
    data_preprocessor=dict(
        mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]
    ),
    # Without published weights the network starts from random ones.
    backbone=dict(type='mmattn.IViT', arch={arch!r}),
    decode_head=dict(
        in_channels={channels!r},
        num_classes=num_classes,
        # Weights of the classes in the loss, larger for rare ones.
        loss_decode=dict(class_weight={class_weight!r}),
    ),
)

# Images keep their size. Training sees at most {crop} x {crop} pixels of each.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomCrop', crop_size=({crop}, {crop})),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
# A class of the number 0 is a class like others: reduce_zero_label=False.
dataset = dict(
    data_root=data_root,
    metainfo=metainfo,
    img_suffix={suffix!r},
    seg_map_suffix='.png',
    reduce_zero_label=False,
)
batch_size = {batch_size}
train_dataloader = dict(
    batch_size=batch_size,
    dataset=dict(
        data_prefix=dict(img_path='images/train', seg_map_path='labels/train'),
        pipeline=train_pipeline,
        **dataset,
    ),
)
val_dataloader = dict(
    dataset=dict(
        data_prefix=dict(img_path='images/val', seg_map_path='labels/val'),
        **dataset,
    ),
)
test_dataloader = val_dataloader
"""

SCHEDULE = """
# {reason}
max_iters = {max_iters}
train_cfg = dict(max_iters=max_iters, val_interval={interval})
optim_wrapper = dict(optimizer=dict(type='AdamW', lr={lr}, weight_decay=0.05))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(
        type='CosineAnnealingLR',
        by_epoch=False,
        begin=20,
        end=max_iters,
        T_max=max_iters - 20,
        eta_min_ratio=0.01,
    ),
]
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


def describe(sizes: Sequence[tuple[int, int]]) -> str:
    """Return the range of heights and widths in words."""
    heights, widths = zip(*sizes, strict=True)

    def span(values: Sequence[int]) -> str:
        low, high = min(values), max(values)
        return f'{low}' if low == high else f'{low} to {high}'

    return f'The images have {span(heights)} x {span(widths)} pixels (height x width).'


def shrinking(sizes: Sequence[tuple[int, int]]) -> tuple[float, str]:
    """Return the factor that all images are resized by, and a sentence about it."""
    factor = min(min(LONG / max(size), SHORT / min(size)) for size in map(tuple, sizes))
    if factor >= 1:
        return 1.0, 'Images keep their size, in training and in tests.'
    factor = round(factor, 3)
    return factor, (
        f'All images are shrunk by {factor}, as the largest would exceed {LONG} x '
        f'{SHORT}.\n# Cut them into tiles if objects get too small.'
    )


def anchor_scale(sides: np.ndarray) -> int:
    """Return the scale of anchors at strides 4 to 32 whose middle fits the objects."""
    middle = float(np.exp(np.log(np.maximum(sides, 1)).mean()))
    return int(np.clip(round(middle / np.sqrt(8 * 16)), 2, 16))


def schedule(images: int, batch_size: int, arch: str, best: str) -> str:
    """Return the part of a config about iterations, optimizer and checkpoints.

    `best` is the metric that chooses the best checkpoint.
    """
    iterations = EPOCHS * images / batch_size
    max_iters = int(np.clip(round(iterations, -2), FEWEST, MOST))
    reason = f'{max_iters} iterations of {batch_size} images'
    reason += f' are {max_iters * batch_size / images:.0f} passes over {images} images.'
    return SCHEDULE.format(
        reason=reason,
        max_iters=max_iters,
        interval=max_iters // 3,
        batch_size=batch_size,
        lr='1e-3' if arch == 'nano' else '5e-4',
        best=best,
    )


def crop_of(sizes: Sequence[tuple[int, int]], factor: float = 1.0) -> int:
    """Return the side of training crops: the images', a multiple of 32, to `CROP`."""
    side = max(max(size) for size in sizes) * factor
    return int(min(CROP, -(-side // 32) * 32))


def batch_of(crop: int) -> int:
    """Return the images of a batch that fit into a few GB."""
    return 4 if crop <= 256 else 2


def detection(
    out: Path, classes: Sequence[str], splits: dict[str, list[Picture]], arch: str
) -> str:
    """Return a config for Mask R-CNN, or Faster R-CNN where there are boxes only."""
    pictures = [picture for part in splits.values() for picture in part]
    has_masks = any(picture.masks for picture in pictures)
    sizes = [picture.size for picture in pictures]
    factor, resized = shrinking(sizes)
    boxes = np.array([box for picture in pictures for box in picture.boxes])
    sides = np.sqrt(boxes[:, 2] * boxes[:, 3]) * factor
    scale = anchor_scale(sides)
    most = max(len(picture.boxes) for picture in pictures)
    crop = crop_of(sizes, factor)
    low, high = np.percentile(sides, (25, 75))
    text = DETECTION.format(
        method='Mask R-CNN' if has_masks else 'Faster R-CNN',
        type='MaskRCNN' if has_masks else 'FasterRCNN',
        dataset='coco_instance' if has_masks else 'coco_detection',
        mask_head='mask_head=dict(num_classes=num_classes)'
        if has_masks
        else 'mask_roi_extractor=None,\n        mask_head=None',
        with_mask=', with_mask=True' if has_masks else '',
        has_masks=has_masks,
        arch=arch,
        channels=list(CHANNELS[arch]),
        name=out.name,
        pictures=describe(sizes),
        root=f'{out.as_posix()}/',
        classes=tuple(classes),
        num_classes=len(classes),
        scale=round(scale / factor, 2),
        sides=', '.join(str(scale * stride) for stride in (4, 8, 16, 32)),
        low=low,
        high=high,
        most=most,
        max_per_img=max(100, 2 * most),
        resized=resized,
        factor=factor,
        empty=sum(not picture.boxes for picture in splits['train']),
        images=len(splits['train']),
        crop=crop,
        batch_size=batch_of(crop),
    )
    best = 'coco/segm_mAP' if has_masks else 'coco/bbox_mAP'
    return text + schedule(len(splits['train']), batch_of(crop), arch, best)


def segmentation(
    out: Path, classes: Sequence[str], splits: dict[str, list], arch: str
) -> str:
    """Return a config for UperNet.

    Raises:
        ValueError: images have several suffixes, of which mmseg reads one.
    """
    images = [pair[0] for part in splits.values() for pair in part]
    suffixes = sorted({image.suffix for image in images})
    if len(suffixes) > 1:
        raise UserError(
            f'all images must have one suffix, got {", ".join(suffixes)}; convert them'
        )
    sizes = [image_size(image) for image in images]
    crop = crop_of(sizes)
    text = SEGMENTATION.format(
        arch=arch,
        name=out.name,
        pictures=describe(sizes),
        root=f'{out.as_posix()}/',
        classes=tuple(classes),
        palette=[tuple(color) for color in class_colors(len(classes))],
        num_classes=len(classes),
        channels=list(CHANNELS[arch]),
        class_weight=None,
        crop=crop,
        suffix=suffixes[0],
        batch_size=batch_of(crop),
    )
    return text + schedule(len(splits['train']), batch_of(crop), arch, 'mIoU')
