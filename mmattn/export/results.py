"""Read the results of an image from the outputs of an exported model."""

from collections.abc import Sequence

import numpy as np

from mmattn.errors import UserError

from ..images import nearest
from ..results import Detections, Segmentation
from ..results.names import class_names, label_type
from .inputs import Prepared
from .metadata import Metadata

MAX_LABELS = 2**16  # where classes have no names
MAX_VALUES = 2**24  # resized logits that are held at a time


def check_outputs(
    outputs: Sequence[np.ndarray], shape: Sequence[int], metadata: Metadata
):
    """Raise a ValueError unless a graph's outputs are those that its metadata tells.

    `shape` is the shape of its images, (B, 3, H, W).
    """
    (B, _, H, W), shapes = shape, [out.shape for out in outputs]
    match metadata.task, shapes:
        case 'detection', [(_, K, 5), (_, N), *masks]:
            fits = N == K and all(len(x) == 4 and x[1] == K for x in masks)
        case 'segmentation', [(_, h, w) | (_, _, h, w)]:
            fits = (h, w) == (H, W)
        case ('classification', [(_, _)]) | ('features', _):
            fits = True
        case _:
            fits = False
    if not fits or [x[:1] for x in shapes] != [(B,)] * len(metadata.outputs):
        raise UserError(
            f'outputs of shapes {shapes} do not fit images of shape {tuple(shape)} and '
            f'the task {metadata.task!r} with the outputs {metadata.outputs}'
        )
    _check_labels(outputs, metadata)


def _check_labels(outputs: Sequence[np.ndarray], metadata: Metadata):
    """Raise a ValueError for a label without a class, or a huge one without names.

    What is done with labels, such as a palette, takes memory by their size.
    """
    known = MAX_LABELS if metadata.classes is None else len(metadata.classes)
    match metadata.task, outputs:
        case 'detection', [_, labels, *_]:
            is_known = labels < known  # negative ones are no objects
        case 'segmentation', [labels] if labels.ndim == 3:
            # One channel decides between two classes.
            is_known = (labels >= 0) & (labels < max(known, 2))
        case _:
            return
    if not is_known.all():
        names = f'has {known} names'
        if metadata.classes is None:
            names = f'has no names; without names labels are 0 to {known - 1}'
        raise UserError(
            f'the graph gives the label {labels[~is_known].flat[0]}, and `classes` of '
            f'the metadata {names}'
        )


def detections(
    outputs: Sequence[np.ndarray], image: Prepared, metadata: Metadata
) -> Detections:
    """Return the objects that a detector found in one image."""
    dets, labels, *masks = outputs
    keep = labels >= 0
    dets, labels = dets[keep], labels[keep]
    boxes = dets[:, :4] / np.array([*image.scale, *image.scale], np.float32)
    pasted = None
    if masks:
        threshold = metadata.mask_threshold
        threshold = 0.5 if threshold is None else threshold
        pasted = paste_masks(masks[0][keep], boxes, image.original, threshold)
    classes = metadata.classes
    return Detections(
        boxes,
        dets[:, 4],
        labels,
        class_names(classes, labels),
        pasted,
        size=image.original,
        classes=classes,
    )


def paste_masks(
    masks: np.ndarray, boxes: np.ndarray, size: tuple[int, int], threshold: float = 0.5
) -> np.ndarray:
    """Return masks in the size of the image, sampled at the centers of its pixels.

    Args:
        masks: probabilities, shape (n, h, w).
        boxes: shape (n, 4), in pixels of the image. A box without area gives no pixel.
        size: height and width of the image.
        threshold: lowest probability of a pixel in the mask.

    Returns:
        Shape (n, H, W), bool.
    """
    pasted = np.zeros((len(masks), *size), bool)
    for mask, (x1, y1, x2, y2), out in zip(masks, boxes, pasted, strict=True):
        rows, down = _bilinear(y1, y2, size[0], mask.shape[0])
        columns, across = _bilinear(x1, x2, size[1], mask.shape[1])
        out[rows, columns] = down @ mask @ across.T >= threshold
    return pasted


def _bilinear(
    start: np.float32, end: np.float32, length: int, cells: int
) -> tuple[slice, np.ndarray]:
    """Return the pixels around a side of a box, and their weights of the mask's cells.

    The mask is 0 outside of the box. A box that is not finite gives no pixel.
    """
    if not (end > start and np.isfinite(end - start)):
        return slice(0), np.zeros((0, cells), np.float32)
    first = max(int(np.floor(start)) - 1, 0)
    last = max(min(int(np.ceil(end)) + 1, length), first)
    center = np.arange(first, last, dtype=np.float32) + np.float32(0.5)
    position = (center - start) / (end - start) * cells - np.float32(0.5)
    distance = np.abs(position[:, None] - np.arange(cells, dtype=np.float32))
    return slice(first, last), np.maximum(1 - distance, 0)


def segmentation(
    outputs: Sequence[np.ndarray], image: Prepared, metadata: Metadata
) -> Segmentation:
    """Return the classes that a segmentor gave to the pixels of one image."""
    output = outputs[0][..., : image.size[0], : image.size[1]]
    if output.ndim == 2:  # labels
        rows = nearest(output.shape[0], image.original[0])
        columns = nearest(output.shape[1], image.original[1])
        labels = output[rows[:, None], columns]
    else:
        threshold = metadata.mask_threshold
        threshold = 0.5 if threshold is None else threshold
        labels = _labels(output, image.original, metadata.align_corners, threshold)
    return Segmentation(labels, metadata.classes, metadata.palette)


def _labels(
    logits: np.ndarray, size: tuple[int, int], align_corners: bool, threshold: float
) -> np.ndarray:
    """Resize logits of shape (C, h, w) bilinearly and return the best class.

    A single class is chosen where its probability is above the threshold.
    """
    C = logits.shape[0]
    top, bottom, far = _neighbors(logits.shape[1], size[0], align_corners)
    left, right, across = _neighbors(logits.shape[2], size[1], align_corners)
    labels = np.empty(size, label_type(C))
    step = max(MAX_VALUES // (C * size[1]), 1)
    for start in range(0, size[0], step):
        part = slice(start, start + step)
        rows = logits[:, top[part]] * (1 - far[part, None])
        rows += logits[:, bottom[part]] * far[part, None]
        values = rows[:, :, left] * (1 - across) + rows[:, :, right] * across
        if C > 1:
            labels[part] = values.argmax(0)
        else:
            labels[part] = 1 / (1 + np.exp(-values[0])) > threshold
    return labels


def _neighbors(old: int, new: int, align_corners: bool):
    """Return the cells before and after each new pixel, and the part of the latter."""
    index = np.arange(new, dtype=np.float32)
    if align_corners:
        position = index * np.float32((old - 1) / max(new - 1, 1))
    else:
        position = (index + np.float32(0.5)) * np.float32(old / new) - np.float32(0.5)
        position = np.maximum(position, 0)
    before = np.minimum(position.astype(int), old - 1)
    after = np.minimum(before + 1, old - 1)
    return before, after, position - before.astype(np.float32)
