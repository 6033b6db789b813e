"""Describe the images and labels that each config trains and tests on.

Sources are named beside the functions. Where a paper names none, the source is the code
that its recipe refers to: DeiT, Swin, mmdetection, mmsegmentation.
"""

from fnmatch import fnmatch

from config_files import RECIPES
from recipe_detectors import IMAGENET


def first(table: dict, name: str):
    """Return the value of the first pattern that fits, or None."""
    return next((row for key, row in table.items() if fnmatch(name, key)), None)


BGR = dict(
    fill_color=IMAGENET['mean'][::-1],
    fill_std=IMAGENET['std'][::-1],
)
CUBIC = dict(backend='pillow', interpolation='bicubic')
# Short sides of test images, by the crop: 256 for 224 pixels, and in proportion.
SHORT_SIDES = {224: 256, 384: 438, 448: 512, 672: 768, 896: 1024}
COCO_SCALES = tuple((side, 1333) for side in range(480, 801, 32))
TTA_RATIOS = 0.5, 0.75, 1, 1.25, 1.5, 1.75  # Swin's
LOAD = dict(type='LoadImageFromFile')


def imagenet_steps(side: int) -> tuple[dict, ...]:
    """Return DeiT's augmentation: RandAugment 9/0.5 and erasing 0.25."""
    return (
        LOAD,
        dict(type='RandomResizedCrop', scale=side, **CUBIC),
        dict(type='RandomFlip', prob=0.5, direction='horizontal'),
        dict(
            type='RandAugment',
            policies='timm_increasing',
            num_policies=2,
            total_level=10,
            magnitude_level=9,
            magnitude_std=0.5,
            hparams=dict(pad_val=(104, 116, 124), interpolation='bicubic'),
        ),
        dict(
            type='RandomErasing',
            erase_prob=0.25,
            mode='rand',
            min_area_ratio=0.02,
            max_area_ratio=round(1 / 3, 4),
            **BGR,
        ),
        dict(type='PackInputs'),
    )


def imagenet_test(side: int, whole: bool) -> tuple[dict, ...]:
    crop = (
        dict(type='ResizeEdge', scale=SHORT_SIDES[side], edge='short', **CUBIC),
        dict(type='CenterCrop', crop_size=side),
    )
    resize = (dict(type='Resize', scale=side, **CUBIC),) if whole else crop
    return LOAD, *resize, dict(type='PackInputs')


def resize_to(*scales: tuple[int, int]) -> dict:
    return dict(type='RandomChoiceResize', scales=scales, keep_ratio=True)


def coco_steps(
    masks: bool, long_side: int | None, short_side: int = 800
) -> tuple[dict, ...]:
    """Return steps at (1333, 800), or at several scales with a crop in between.

    `short_side` is 640 in PVT's Table 11, and the long one in proportion.
    `long_side` bounds images before the crop: at 1333 pixels in Sparse R-CNN and Swin,
    and above all of COCO's images in DETR.
    """
    load = dict(type='LoadAnnotations', with_bbox=True)
    if masks:
        load['with_mask'] = True
    flip = dict(type='RandomFlip', prob=0.5)
    if long_side is None:
        scale = short_side * 5 // 3, short_side
        scales = (dict(type='Resize', scale=scale, keep_ratio=True), flip)
    else:
        crop = dict(
            type='RandomCrop',
            crop_type='absolute_range',
            crop_size=(384, 600),
            allow_negative_crop=True,
        )
        shrunk = resize_to(*((side, long_side) for side in (400, 500, 600)))
        several = resize_to(*COCO_SCALES)
        choice = ((several,), (shrunk, crop, several))
        scales = (flip, dict(type='RandomChoice', transforms=choice))
    return LOAD, load, *scales, dict(type='PackDetInputs')


def coco_test(masks: bool, short_side: int = 800) -> tuple[dict, ...]:
    load, annotations, resize, _, pack = coco_steps(masks, None, short_side)
    return load, resize, annotations, pack


def detr_steps() -> tuple[dict, ...]:
    """Return the steps of PVT's DETR, with short sides of 640 to 800 and no crop."""
    load, annotations, _, flip, pack = coco_steps(False, None)
    several = resize_to(*((1333, side) for side in range(640, 801, 32)))
    return load, annotations, several, flip, pack


LABELS = dict(type='LoadAnnotations', reduce_zero_label=True)
PACK = dict(type='PackSegInputs')
ADE_STEPS = (
    LOAD,
    LABELS,
    dict(type='RandomResize', scale=(2048, 512), ratio_range=(0.5, 2), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    PACK,
)
# PVT stretches test images to multiples of 32.
ALIGNED = dict(type='ResizeToMultiple', size_divisor=32)


def ade_size(ratio: float) -> dict:
    scale = int(2048 * ratio), int(512 * ratio)
    return dict(type='Resize', scale=scale, keep_ratio=True)


def ade_test(aligned: bool) -> tuple[dict, ...]:
    return LOAD, ade_size(1), *(ALIGNED,) * aligned, LABELS, PACK


def ade_tta(aligned: bool) -> tuple[dict, ...]:
    flips = tuple(
        dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0, 1)
    )
    sizes = tuple(map(ade_size, TTA_RATIOS))
    steps = (sizes, flips, *((ALIGNED,),) * aligned, (LABELS,), (PACK,))
    return LOAD, dict(type='TestTimeAug', transforms=steps)


IN_ORDER = dict(type='DefaultSampler', shuffle=False)
SHUFFLED = dict(type='DefaultSampler', shuffle=True)
# Repeated augmentation is DeiT's; Swin and the paper of iViT do not use it. Section 5.1
# of MaiT refers to DeiT for all but H-MaiT, appendix A.2 of LiSA names it for
# ImageNet-1K, and PVT has DeiT's code.
REPEATED = {
    'classification/hylisanet_*_in21k*': False,
    'classification/*lisanet_*': True,
    'classification/mait_*': True,
    'classification/masked_cait_*': True,
    'classification/deit_*': True,
    'classification/cait_*': True,
    'classification/pvt*': True,
}
SIDES = {f'classification/*_{side}_30e_in1k': side for side in (384, 448, 672, 896)}


def loader(sampler: dict, dataset: dict, batch: int | None, **settings) -> dict:
    size = {} if batch is None else dict(batch_size=batch)
    return dict(sampler=sampler, dataset=dataset, **size, **settings)


def classification_data(name: str, batch: int) -> dict:
    side = first(SIDES, name) or 224
    whole = name == 'classification/datpp_b_384_30e_in1k'
    data = dict(type='ImageNet', data_root='data/imagenet')
    train = data | dict(split='train', pipeline=imagenet_steps(side))
    test = data | dict(split='val', pipeline=imagenet_test(side, whole))
    sampler = dict(type='RepeatAugSampler') if first(REPEATED, name) else {}
    loaders = dict(
        train_dataloader=loader(SHUFFLED | sampler, train, batch),
        val_dataloader=loader(IN_ORDER, test, None),
        val_evaluator=dict(type='Accuracy', topk=(1, 5)),
    )
    if fnmatch(name, '*_in21k'):
        train |= dict(type='ImageNet21k', data_root='data/imagenet21k')
        loaders |= dict(val_dataloader=None, val_evaluator=None)
    return loaders


def detection_data(name: str, batch: int) -> dict:
    masks = 'mask_rcnn' in name
    detr = name.startswith('deformable_detr/')
    # DAT-Detection trains at several scales for 12 epochs, too.
    several = '_3x_' in name or '/datpp_' in name
    long_side = 4200 if detr else 1333 if several else None
    kept = dict(filter_empty_gt=True, min_size=32)
    root = 'data/coco/'
    files = {
        split: f'annotations/instances_{split}2017.json' for split in ('train', 'val')
    }

    def split(name: str, pipeline: tuple, **settings) -> dict:
        return dict(
            type='CocoDataset',
            data_root=root,
            ann_file=files[name],
            data_prefix=dict(img=f'{name}2017/'),
            pipeline=pipeline,
            **settings,
        )

    kept = dict(filter_empty_gt=False) if detr else kept
    side = 640 if '_640_' in name else 800
    steps = coco_steps(masks, long_side, side)
    if name.startswith('detr/'):
        steps = detr_steps()
    train = split('train', steps, filter_cfg=kept)
    test = split('val', coco_test(masks, side), test_mode=True)
    return dict(
        train_dataloader=loader(
            SHUFFLED,
            train,
            batch,
            batch_sampler=dict(type='AspectRatioBatchSampler'),
        ),
        val_dataloader=loader(IN_ORDER, test, 1, drop_last=False),
        val_evaluator=dict(
            type='CocoMetric',
            ann_file=root + files['val'],
            metric=('bbox', 'segm') if masks else 'bbox',
        ),
    )


def segmentation_data(name: str, batch: int) -> dict:
    aligned = fnmatch(name, 'sem_fpn/pvt*')

    def split(name: str, pipeline: tuple) -> dict:
        return dict(
            type='ADE20KDataset',
            data_root='data/ade/ADEChallengeData2016',
            data_prefix=dict(
                img_path=f'images/{name}', seg_map_path=f'annotations/{name}'
            ),
            pipeline=pipeline,
        )

    endless = dict(type='InfiniteSampler', shuffle=True)
    return dict(
        train_dataloader=loader(endless, split('training', ADE_STEPS), batch),
        val_dataloader=loader(IN_ORDER, split('validation', ade_test(aligned)), 1),
        val_evaluator=dict(type='IoUMetric', iou_metrics=('mIoU',)),
        tta_pipeline=ade_tta(aligned),
        tta_model=dict(type='SegTTAModel'),
    )


def data(name: str) -> dict:
    """Return the loaders and evaluators of a config; test and validation are alike."""
    batch = RECIPES[name]['batch'] // RECIPES[name]['gpus']
    kinds = {'classification': classification_data, 'segmentation': segmentation_data}
    kind = 'segmentation' if 'ade20k' in name else name.split('/')[0]
    parts = kinds.get(kind, detection_data)(name, batch)
    alike = {
        f'test_{part}': parts[f'val_{part}'] for part in ('dataloader', 'evaluator')
    }
    return parts | alike
