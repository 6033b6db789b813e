"""Check heads with anchors, and read their anchors and scores."""

from collections.abc import Mapping, Sequence

from mmdet.models.task_modules import (
    AnchorGenerator,
    DeltaXYWHBBoxCoder,
    DistancePointBBoxCoder,
)
from torch import Tensor, nn

from ..errors import ExportError
from .nms import rows
from .parts import check_class


def check_boxes(head: nn.Module):
    """Raise an ExportError if a head has other boxes or scores than the stock heads."""
    check_class(head.bbox_coder, DeltaXYWHBBoxCoder, DistancePointBBoxCoder)
    if head.bbox_coder.use_box_type:
        raise ExportError(f'{type(head).__name__}: `use_box_type` cannot be exported')
    if getattr(head.loss_cls, 'custom_cls_channels', False):
        raise ExportError(
            f'{type(head).__name__}: {type(head.loss_cls).__name__} has scores that '
            'cannot be exported'
        )


def check_anchors(head: nn.Module):
    """Raise an ExportError if the anchors of a head cannot be exported."""
    check_class(head.prior_generator, AnchorGenerator)
    check_boxes(head)


def level_anchors(head: nn.Module, maps: Sequence[Tensor]) -> list[Tensor]:
    """Return the anchors of each level, shape (N, 4), for maps (..., H, W)."""
    sizes = [x.shape[-2:] for x in maps]
    return head.prior_generator.grid_priors(sizes, maps[0].dtype, maps[0].device)


def class_scores(head: nn.Module, x: Tensor) -> Tensor:
    """Return the probabilities of an image's map, shape (N, classes)."""
    x = rows(x, head.cls_out_channels)
    return x.sigmoid() if head.use_sigmoid_cls else x.softmax(-1)[:, :-1]


def is_large(boxes: Tensor, config: Mapping) -> Tensor:
    """Return whether each box is larger than `min_bbox_size` of a `test_cfg`."""
    limit = config.get('min_bbox_size', -1)
    sides = boxes[:, 2:] - boxes[:, :2]
    # A negative limit accepts all boxes, also those whose corners are exchanged.
    return (sides > (limit if limit >= 0 else float('-inf'))).all(1)
