"""Write a config that trains on a data set that `convert.py` made."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from mmattn.errors import UserError

from ..images.draw import class_colors
from . import config_templates as templates
from .archs import Arch, backbone_text
from .class_folders import ClassImage
from .image_files import image_size
from .inputs import find_inputs
from .label_maps import LabelMap
from .own_data import Picture
from .tiles import Tiling

LONG, SHORT = 1333, 800  # largest image that is not shrunk
CROP = 512  # pixels of a training crop
FEWEST, MOST = 300, 3000  # iterations
EPOCHS = 30
CLASSIFIED = 32  # images of a batch of a classifier
SMALL = 20  # pixels; objects of smaller sides are found badly at strides of 4 and more
# Proposals and boxes for each object, the fewest of an image, and a round number.
PROPOSALS, BOXES, ROUND = 4, 2, 100


@dataclass(frozen=True)
class Written:
    """A config that is about to be written.

    Attributes:
        text: of the config.
        method: the beginning of its name.
        small: whether objects are too small to shrink the images.
        warnings: what a user should know before training.
    """

    text: str
    method: str
    small: bool = False
    warnings: Sequence[str] = ()


def describe(sizes: Sequence[tuple[int, int]]) -> str:
    """Return the range of heights and widths in words."""
    heights, widths = zip(*sizes, strict=True)

    def span(values: Sequence[int]) -> str:
        low, high = min(values), max(values)
        return f'{low}' if low == high else f'{low} to {high}'

    return f'The images have {span(heights)} x {span(widths)} pixels (height x width).'


def shrinking(
    sizes: Sequence[tuple[int, int]], middle: float = LONG, wish: float | None = None
) -> tuple[float, str]:
    """Return the factor that all images are resized by, and a sentence about it.

    Args:
        sizes: heights and widths of the images.
        middle: median side of the objects.
        wish: the factor that the user wants.

    Raises:
        ValueError: `wish` is not positive.
    """
    if wish is not None:
        if not 0 < wish <= 16:
            raise UserError(f'--factor must be above 0 and at most 16, got {wish}')
        return wish, f'All images are resized by {wish:g}, in training and in tests.'
    factor = min(min(LONG / max(size), SHORT / min(size)) for size in map(tuple, sizes))
    factor = round(factor, 3)
    if factor >= 1:
        return 1.0, 'Images keep their size, in training and in tests.'
    if middle * factor < SMALL:
        return 1.0, (
            'Images keep their size, though some are larger than '
            f'{LONG} x {SHORT}:\n# their objects are too small to shrink them.'
        )
    return factor, (
        f'All images are shrunk by {factor}, as the largest would exceed {LONG} x '
        f'{SHORT}.\n# --tile cuts them into tiles instead.'
    )


def of_small_objects(sides: np.ndarray, factor: float, longest: int) -> str | None:
    """Return a warning if most objects are small, else None.

    Args:
        sides: of the objects, in pixels that training sees.
        factor: that images are resized by.
        longest: side of the images.
    """
    if np.median(sides) >= SMALL:
        return None
    low, high = np.percentile(sides, (25, 75))
    tile = '--tile 400 cuts them into tiles, and ' if longest > 600 else ''
    return (
        f'the objects are small: the middle half has sides of {low:.0f} to {high:.0f} '
        f'pixels, where the finest map has a stride of 4. Do not shrink the images: '
        f'{tile}--factor {2 * factor:g} enlarges them'
    )


def limits(most: int, most_train: int) -> dict[str, int]:
    """Return limits of proposals and of boxes an image, for the largest count."""

    def at_least(fewest: int, count: int) -> int:
        return max(fewest, -(-count // ROUND) * ROUND)

    return dict(
        proposals=at_least(500, PROPOSALS * most),
        max_per_img=max(100, BOXES * most),
        train_pre=at_least(1000, PROPOSALS * most_train),
        train_proposals=at_least(500, BOXES * most_train),
    )


def load_text(pictures: Sequence[Picture], has_masks: bool) -> str:
    """Return the line that loads annotations.

    Outlines stay polygons if they all are, which take less memory than pixels.
    """
    if not has_masks:
        return "load = dict(type='LoadAnnotations', with_bbox=True)"
    polygons = all(
        isinstance(outline, list) or index in picture.crowds
        for picture in pictures
        for index, outline in enumerate(picture.masks)
    )
    option = ', poly2mask=False' if polygons else ''
    return (
        "load = dict(\n    type='LoadAnnotations', with_bbox=True, "
        f'with_mask=True{option}\n)'
    )


def anchor_scale(sides: np.ndarray) -> int:
    """Return the scale of anchors at strides 4 to 32 whose middle fits the objects."""
    middle = float(np.exp(np.log(np.maximum(sides, 1)).mean()))
    return int(np.clip(round(middle / np.sqrt(8 * 16)), 2, 16))


def schedule(images: int, batch_size: int, arch: Arch, best: str) -> str:
    """Return the part of a config about iterations, optimizer and checkpoints.

    `best` is the metric that chooses the best checkpoint.
    """
    iterations = EPOCHS * images / batch_size
    max_iters = int(np.clip(round(iterations, -2), FEWEST, MOST))
    reason = f'{max_iters} iterations of {batch_size} images'
    reason += f' are {max_iters * batch_size / images:.0f} passes over {images} images.'
    return templates.SCHEDULE.format(
        reason=reason,
        max_iters=max_iters,
        interval=max_iters // 3,
        batch_size=batch_size,
        lr='1e-3' if arch.is_small else '5e-4',
        warm_up=max_iters // 15,
        best=best,
    )


def crop_of(sizes: Sequence[tuple[int, int]], factor: float = 1.0) -> int:
    """Return the side of training crops: the images', a multiple of 32, to `CROP`."""
    side = max(max(size) for size in sizes) * factor
    return int(min(CROP, -(-side // 32) * 32))


def batch_of(crop: int) -> int:
    """Return the images of a batch that fit into a few GB."""
    return 4 if crop <= 256 else 2


@dataclass(frozen=True)
class Settings:
    """Hold what a user chooses of a config.

    Attributes:
        arch: backbone.
        pretrained: weights to start from, 'none' for random ones; None takes the
            published ones of the backbone.
        factor: that images are resized by; None chooses.
        tiling: how images were cut, if they were.
        flip: a key of `templates.FLIPS`.
        channels: of TIFF files that are read as they are; None for RGB.
    """

    arch: Arch
    pretrained: str | None = None
    factor: float | None = None
    tiling: Tiling | None = None
    flip: str = 'horizontal'
    channels: int | None = None


def facts(
    out: Path,
    classes: Sequence[str],
    sizes: Sequence[tuple[int, int]],
    train: Sequence,
    settings: Settings,
    task: str,
) -> dict:
    """Return what every config tells.

    Args:
        out: folder of the data set.
        classes: names of the classes.
        sizes: heights and widths of the images.
        train: images to train on.
        settings: of the user.
        task: see `find_inputs`.
    """
    arch, tiling = settings.arch, settings.tiling
    inputs = find_inputs(train, settings.channels, task)
    tiles = tiling and templates.TILES.format(tile=tiling.tile, overlap=tiling.overlap)
    return dict(
        name=out.name,
        root=f'{out.as_posix()}/',
        classes=tuple(classes),
        num_classes=len(classes),
        pictures=describe(sizes),
        arch=arch.name,
        backbone=backbone_text(arch, inputs, settings.pretrained),
        load_image=inputs.load,
        flip=templates.FLIPS[settings.flip],
        tiles=tiles or '',
        resize=templates.RESIZE,
    )


def detection(
    out: Path,
    classes: Sequence[str],
    splits: dict[str, list[Picture]],
    settings: Settings,
    most: int = 0,
) -> Written:
    """Return a config for Mask R-CNN, or Faster R-CNN where there are boxes only.

    Args:
        out: folder of the data set.
        classes: names of the classes.
        splits: pictures of `train`, of `val`, and of tests.
        settings: of the user.
        most: the largest number of objects of an image before it was cut.

    Raises:
        ValueError: the factor is out of range.
    """
    pictures = [picture for part in splits.values() for picture in part]
    train = splits['train']
    seen = train + splits['val'] if settings.tiling else pictures
    has_masks = any(picture.masks for picture in pictures)
    sizes = [picture.size for picture in seen]
    boxes = np.array([box for picture in seen for box in picture.boxes])
    sides = np.sqrt(boxes[:, 2] * boxes[:, 3])
    factor, resized = shrinking(sizes, float(np.median(sides)), settings.factor)
    sides *= factor
    scale = anchor_scale(sides)
    crop = crop_of(sizes, factor)
    low, high = np.percentile(sides, (25, 75))
    most = max(most, *(len(picture.boxes) for picture in pictures))
    most_train = max(len(picture.boxes) for picture in train)
    method = 'Mask R-CNN' if has_masks else 'Faster R-CNN'
    text = templates.DETECTION.format(
        **facts(out, classes, sizes, train, settings, 'detection'),
        **limits(most, most_train),
        method=method,
        type='MaskRCNN' if has_masks else 'FasterRCNN',
        dataset='coco_instance' if has_masks else 'coco_detection',
        mask_head='mask_head=dict(num_classes=num_classes)'
        if has_masks
        else 'mask_roi_extractor=None,\n        mask_head=None',
        load=load_text(pictures, has_masks),
        has_masks=has_masks,
        channels=list(settings.arch.channels),
        scale=round(scale / factor, 2),
        sides=', '.join(str(scale * stride) for stride in (4, 8, 16, 32)),
        low=low,
        high=high,
        most=most,
        most_train=most_train,
        resized=resized,
        factor=factor,
        empty=sum(not picture.boxes for picture in train),
        images=len(train),
        crop=crop,
        batch_size=batch_of(crop),
    )
    test = [name for name in splits if name not in ('train', 'val')]
    text += templates.DETECTION_PART.format(loop='val', split='val')
    text += templates.SAME_TEST if not test else ''
    for name in test:
        text += templates.DETECTION_PART.format(loop='test', split=name)
    text += templates.AVERAGE
    best = 'coco/segm_mAP' if has_masks else 'coco/bbox_mAP'
    warning = of_small_objects(sides, factor, max(map(max, sizes)))
    return Written(
        text + schedule(len(train), batch_of(crop), settings.arch, best),
        method.lower().replace('-', '').replace(' ', '_'),
        small=bool(np.median(sides) < 2 * SMALL),
        warnings=[warning] if warning else [],
    )


def one_suffix(found: Sequence[LabelMap]) -> str:
    """Return the suffix of images that are written.

    Raises:
        ValueError: there are several, of which mmseg reads one.
    """
    suffixes = sorted({PurePosixPath(each.name).suffix for each in found})
    if len(suffixes) > 1:
        raise UserError(
            f'all images must have one suffix, got {", ".join(suffixes)}; convert them'
        )
    return suffixes[0]


def segmentation(
    out: Path,
    classes: Sequence[str],
    splits: dict[str, list[LabelMap]],
    settings: Settings,
) -> Written:
    """Return a config for UperNet; see `detection`.

    Raises:
        ValueError: images have several suffixes, or the factor is out of range.
    """
    seen = splits['train'] + splits['val']
    sizes = [_size(each) for each in seen]
    factor, resized = shrinking(sizes, wish=settings.factor or 1.0)
    resized = resized if factor != 1 else 'Images keep their size.'
    crop = crop_of(sizes, factor)
    text = templates.SEGMENTATION.format(
        **facts(out, classes, sizes, splits['train'], settings, 'segmentation'),
        palette=[tuple(color) for color in class_colors(len(classes))],
        channels=list(settings.arch.channels),
        resized=resized,
        factor=factor,
        crop=crop,
        suffix=one_suffix(seen),
        batch_size=batch_of(crop),
    )
    test = [name for name in splits if name not in ('train', 'val')]
    text += templates.SAME_TEST if not test else ''
    for name in test:
        suffix = one_suffix(splits[name])
        text += templates.SEGMENTATION_TEST.format(test=name, test_suffix=suffix)
    text += templates.AVERAGE
    images = len(splits['train'])
    text += schedule(images, batch_of(crop), settings.arch, 'mIoU')
    return Written(text, 'upernet')


def classification(
    out: Path, splits: dict[str, list[ClassImage]], settings: Settings
) -> Written:
    """Return a config for a classifier; see `detection`."""
    images = [each for found in splits.values() for each in found]
    sizes = [image_size(each.path, settings.channels) for each in images]
    side = np.median([min(size) for size in sizes])
    classes = sorted({each.folder for each in images})
    text = templates.CLASSIFICATION.format(
        **facts(out, classes, sizes, splits['train'], settings, 'classification'),
        size=int(np.clip(round(side / 32), 1, 7)) * 32,
        channels=settings.arch.channels[-1],
        batch_size=CLASSIFIED,
        test='test' if 'test' in splits else 'val',
    )
    images = len(splits['train'])
    text += schedule(images, CLASSIFIED, settings.arch, 'accuracy/top1')
    return Written(text, 'classifier')


def _size(each: LabelMap) -> tuple[int, int]:
    if each.window is None:
        return each.size
    x1, y1, x2, y2 = each.window
    return y2 - y1, x2 - x1
