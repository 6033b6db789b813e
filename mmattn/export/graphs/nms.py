"""Non-maximum suppression (NMS) for graphs, equal to mmcv's `batched_nms`."""

from collections.abc import Mapping, Sequence

import torch
import torchvision  # noqa: F401  defines torch.ops.torchvision
from torch import Tensor

from ..errors import ExportError

EMPTY = -1
"""The value of all outputs at places without a detection."""


class NMS:
    """Keep the best boxes of each class, at most `limit`.

    Args:
        config: `nms` of a head's `test_cfg`.
        limit: `max_per_img` of a head's `test_cfg`.
        owner: the name of the head in errors.
    """

    def __init__(self, config: Mapping | None, limit: int, owner: str):
        config = dict(config or {'type': None})
        kind = config.pop('type', 'nms')
        if kind != 'nms':
            raise ExportError(
                f"{owner} can be exported with NMS of type 'nms', got {kind!r}"
            )
        # It changes the memory that NMS requires, not the boxes.
        config.pop('split_thr', None)
        self.class_agnostic = config.pop('class_agnostic', False)
        # mmcv and ONNX Runtime compare in float32, torchvision in float64.
        self.iou_threshold = torch.tensor(config.pop('iou_threshold')).item()
        if config:
            raise ExportError(f'{owner}: {sorted(config)} of NMS cannot be exported')
        if limit < 1:
            raise ExportError(f'`max_per_img` of {owner} must be positive, got {limit}')
        self.limit = limit

    def __call__(
        self, boxes: Tensor, scores: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the kept boxes with scores and their labels, highest score first.

        Up to two empty places follow the kept boxes.

        Args:
            boxes: shape (N, 4) as (x1, y1, x2, y2), not negative. N may be 0.
            scores: shape (N,), not negative.
            labels: shape (N,), int64.

        Returns:
            shapes (K, 5) and (K,), where K is at most `limit`.
        """
        # Distant boxes of different classes do not overlap. The offset is mmcv's, since
        # it decides how coordinates are rounded. Two empty places are added, since the
        # maximum requires a box, and torch.export at least two kept ones.
        empty = boxes.new_tensor([[-3, -3, -2, -2], [-6, -6, -5, -5]])
        if self.class_agnostic:
            offsets = torch.zeros_like(scores)
        else:
            offsets = labels.to(boxes) * (torch.cat([boxes, empty]).max() + 1)
        dets = torch.cat([boxes, scores[:, None]], 1)
        dets = torch.cat([dets, dets.new_full((2, 5), EMPTY)])
        labels = torch.cat([labels, labels.new_full((2,), EMPTY)])
        boxes = torch.cat([boxes + offsets[:, None], empty])
        kept = torch.ops.torchvision.nms(boxes, dets[:, 4], self.iou_threshold)
        kept = kept[: self.limit]
        return dets[kept], labels[kept]


def pad(x: Tensor, length: int) -> Tensor:
    """Pad or cut x to `length` rows; added rows are `EMPTY`."""
    return torch.cat([x, x.new_full((length, *x.shape[1:]), EMPTY)])[:length]


def stacked(found: Sequence[Sequence[Tensor]], length: int) -> tuple[Tensor, ...]:
    """Return each output of all images, padded to `length` rows."""
    return tuple(
        torch.stack([pad(x, length) for x in output])
        for output in zip(*found, strict=True)
    )


def clip(boxes: Tensor, image_size: Tensor) -> Tensor:
    """Return the boxes (N, 4) clipped to an image of `image_size`, height and width."""
    return torch.minimum(boxes.clamp(min=0), image_size.flip(0).repeat(2).to(boxes))


def indices(mask: Tensor) -> Tensor:
    """Return the positions where a mask of one dimension is true."""
    return mask.nonzero().squeeze(1)


def rows(x: Tensor, width: int) -> Tensor:
    """Return an image's map (C, H, W) as rows; rows of one position are adjacent."""
    return x.permute(1, 2, 0).reshape(-1, width)
