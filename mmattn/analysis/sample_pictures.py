"""Draw samples of mmdet and mmseg, their ground truth or predictions, with legends."""

from collections import Counter

import matplotlib
import numpy as np
import torch
from mmengine.visualization import Visualizer

from ..results.drawing import class_colors

matplotlib.use('Agg')
from matplotlib import pyplot as plt
from matplotlib.patches import Patch

MAX_ENTRIES = 10  # of a legend

Legend = list[tuple[str, tuple[float, ...] | None]]


def draw_instances(
    image: np.ndarray, instances, visualizer: Visualizer
) -> tuple[np.ndarray, Legend]:
    """Return the image with boxes and masks, and the number of objects by class.

    Each class has a color. Objects of a data set with one class differ in color.
    """
    visualizer.set_image(image)
    boxes = getattr(instances.bboxes, 'tensor', instances.bboxes)
    classes = visualizer.dataset_meta['classes']
    by_class = len(classes) > 1
    labels = instances.labels.tolist()
    palette = class_colors(len(classes) if by_class else len(boxes))
    colors = [tuple(palette[i]) for i in (labels if by_class else range(len(boxes)))]
    if len(boxes) and 'masks' in instances:
        masks = instances.masks
        masks = (
            masks if isinstance(masks, torch.Tensor) else torch.from_numpy(masks.masks)
        )
        visualizer.draw_binary_masks(masks.bool(), colors=colors, alphas=0.5)
    if len(boxes):
        visualizer.draw_bboxes(boxes, edge_colors=colors, line_widths=1)
    legend = [
        (f'{classes[i]}: {count}', _unit(palette[i]) if by_class else None)
        for i, count in Counter(labels).most_common()
    ]
    return visualizer.get_image(), legend


def draw_sample(image: np.ndarray, sample, visualizer: Visualizer, score_thr: float):
    """Return the ground truth and the prediction of an image, each with a legend."""
    if 'gt_instances' in sample:
        truth = draw_instances(image, sample.gt_instances, visualizer)
    else:
        truth = draw_labels(image, sample, visualizer, 'gt')
    return [truth, draw_prediction(image, sample, visualizer, score_thr)]


def draw_prediction(
    image: np.ndarray, sample, visualizer: Visualizer, score_thr: float
) -> tuple[np.ndarray, Legend]:
    """Return the image with the instances or classes predicted, and their legend."""
    if 'pred_instances' not in sample:
        return draw_labels(image, sample, visualizer, 'pred')
    found = sample.pred_instances
    return draw_instances(image, found[found.scores > score_thr], visualizer)


def draw_labels(
    image: np.ndarray, sample, visualizer: Visualizer, which: str
) -> tuple[np.ndarray, Legend]:
    """Return the image in the colors of its classes, and those that occur.

    Args:
        which: 'gt' or 'pred'.
    """
    shown = dict(draw_gt=False, draw_pred=False) | {f'draw_{which}': True}
    visualizer.add_datasample('', image, sample, with_labels=False, **shown)
    meta = visualizer.dataset_meta
    present = getattr(sample, f'{which}_sem_seg').data.unique().tolist()
    legend = [
        (meta['classes'][i], _unit(meta['palette'][i]))
        for i in present
        if i < len(meta['classes'])  # others are ignored
    ]
    return visualizer.get_image(), legend


def _unit(color) -> tuple[float, ...]:
    return tuple(channel / 255 for channel in color)


def show(axis: plt.Axes, picture: np.ndarray, legend: Legend = ()):
    """Show a picture with a legend of at most a few lines below it."""
    axis.imshow(picture)
    if len(legend) > MAX_ENTRIES:
        rest = len(legend) - MAX_ENTRIES + 1
        legend = [*legend[: MAX_ENTRIES - 1], (f'{rest} more', None)]
    if legend:
        handles = [Patch(color=color or 'none', label=text) for text, color in legend]
        axis.legend(
            handles=handles,
            loc='upper center',
            bbox_to_anchor=(0.5, 0),
            ncols=2,
            fontsize='small',
            frameon=False,
            handlelength=1,
            handleheight=1,
        )
