"""Turn the data samples of mmdet, mmseg and mmpretrain into results."""

import numpy as np
from mmengine.structures import BaseDataElement

from mmattn.errors import UserError

from . import Classification, Detections, Segmentation
from .names import class_names, label_type


def as_result(
    sample: BaseDataElement,
    classes: list[str] | None,
    palette: list[list[int]] | None,
    size: tuple[int, int],
) -> Detections | Segmentation | Classification:
    """Return the prediction in a data sample.

    Args:
        sample: what `test_step` returns for an image.
        classes: names of the classes, or None.
        palette: colors of the classes, or None.
        size: height and width of the original image.

    Raises:
        ValueError: the prediction is of another kind.
    """
    if 'pred_instances' in sample:
        return _detections(sample.pred_instances.numpy(), classes, size)
    if 'pred_sem_seg' in sample:
        labels = sample.pred_sem_seg.data[0].cpu().numpy()
        labels = labels.astype(label_type(len(classes or palette or ()) or 2**8))
        return Segmentation(labels, classes, palette)
    if 'pred_score' in sample:
        scores = sample.pred_score.float().cpu().numpy()
        return Classification(scores, classes, size=size)
    raise UserError(
        'the model must predict objects, a label map or a class, got '
        f'{", ".join(sorted(sample.keys())) or "nothing"}'
    )


def truth_of(
    sample: BaseDataElement,
    classes: list[str] | None,
    palette: list[list[int]] | None,
    size: tuple[int, int],
) -> Detections | Segmentation | Classification:
    """Return the annotations in a data sample as a result, objects with a score of 1.

    See `as_result`. Pixels without a class have the label 255.

    Raises:
        ValueError: there are no annotations.
    """
    if 'gt_instances' in sample:
        given = sample.gt_instances
        boxes = getattr(given.bboxes, 'tensor', given.bboxes)
        labels = given.labels.numpy().astype(np.int64)
        masks = None
        if 'masks' in given:
            masks = given.masks.to_ndarray().astype(bool)
        return Detections(
            boxes.numpy().astype(np.float32),
            np.ones(len(labels), np.float32),
            labels,
            class_names(classes, labels),
            masks,
            size=size,
            classes=classes,
        )
    if 'gt_sem_seg' in sample:
        labels = sample.gt_sem_seg.data[0].cpu().numpy()
        return Segmentation(labels, classes, palette)
    if 'gt_label' in sample:
        scores = np.zeros(max(len(classes or ()), int(sample.gt_label.max()) + 1))
        scores[sample.gt_label.numpy()] = 1
        return Classification(scores.astype(np.float32), classes, size=size)
    raise UserError(f'the sample has no annotations, got {", ".join(sample.keys())}')


def _detections(found, classes: list[str] | None, size: tuple[int, int]) -> Detections:
    order = np.argsort(-found.scores, kind='stable')
    masks = None
    if 'masks' in found:
        masks = found.masks
        masks = getattr(masks, 'masks', masks)  # of mmdet's BitmapMasks
        masks = np.asarray(masks, bool).reshape(len(order), *size)
        if (np.diff(order) != 1).any():  # a copy may need gigabytes
            masks = masks[order]
    boxes = found.bboxes[order] if 'bboxes' in found else np.zeros((len(order), 4))
    if masks is not None and not boxes.any():  # detectors without boxes, as SOLO
        boxes = _boxes_of(masks)
    labels = found.labels[order].astype(np.int64)
    return Detections(
        boxes.astype(np.float32),
        found.scores[order].astype(np.float32),
        labels,
        class_names(classes, labels),
        masks,
        size=size,
        classes=classes,
    )


def _boxes_of(masks: np.ndarray) -> np.ndarray:
    """Return the smallest boxes around masks of shape (n, H, W)."""
    boxes = np.zeros((len(masks), 4), np.float32)
    for box, mask in zip(boxes, masks, strict=True):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if rows.size:
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes
