"""Graphs of RetinaNet, ATSS and GFL with post-processing."""

import torch
from mmdet.models.dense_heads import ATSSHead, GFLHead, RetinaHead
from torch import Tensor, nn

from ..errors import ExportError
from .anchors import check_anchors, class_scores, is_large, level_anchors
from .nms import NMS, clip, indices, rows, stacked
from .parts import Detector, check_class


class DenseDetector(Detector):
    """Detect as `model.predict(..., rescale=False)` of a one-stage detector of mmdet.

    Args:
        model: a detector with mmdet's `RetinaHead`, `ATSSHead` or `GFLHead`.

    Raises:
        ExportError: for other models and heads, and for settings of NMS that cannot be
            exported.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        head = model.bbox_head
        check_class(head, RetinaHead, ATSSHead, GFLHead)
        check_anchors(head)
        self.name = type(head).__name__
        self.config = head.test_cfg
        self.nms_pre = self.config.get('nms_pre', -1)
        if self.nms_pre < 1:
            raise ExportError(
                f'`nms_pre` of {self.name} must be positive, got {self.nms_pre}'
            )
        self.nms = NMS(self.config.nms, self.config.max_per_img, self.name)

    def forward(self, image: Tensor, image_size: Tensor) -> tuple[Tensor, Tensor]:
        head = self.model.bbox_head
        maps = head(self.model.extract_feat(image))
        anchors = level_anchors(head, maps[0])
        found = []
        for i, size in enumerate(image_size):
            levels = zip(*([x[i] for x in level] for level in maps), strict=True)
            levels = zip(levels, anchors, head.prior_generator.strides, strict=True)
            levels = [self._candidates(*level) for level in levels]
            candidates = map(torch.cat, zip(*levels, strict=True))
            found.append(self._detect(*candidates, size))
        return stacked(found, self.nms.limit)

    def _candidates(self, maps, anchors: Tensor, stride) -> tuple[Tensor, ...]:
        """Return boxes, scores, labels and whether they count, at most `nms_pre`.

        Args:
            maps: class scores, box predictions and, for ATSS, centerness of a level of
                one image, shapes (C, H, W).
            anchors: shape (N, 4).
            stride: pixels from one anchor to the next, to the right and down.
        """
        head = self.model.bbox_head
        class_maps, deltas, *centerness = maps
        scores = class_scores(head, class_maps)
        num_classes = scores.shape[1]
        scores = scores.flatten()
        scores, index = scores.topk(min(self.nms_pre, len(scores)))
        labels = index % num_classes
        index = index // num_classes
        valid = scores > self.config.get('score_thr', 0)
        anchors = anchors[index]
        if self.name == 'GFLHead':
            anchors = head.anchor_center(anchors)
            deltas = rows(deltas, 4 * (head.reg_max + 1))[index]
            deltas = head.integral(deltas) * stride[0]
        else:
            deltas = rows(deltas, 4)[index]
        if centerness:
            scores = scores * rows(*centerness, 1)[index, 0].sigmoid()
        # Without `max_shape` the coder does not clip.
        return head.bbox_coder.decode(anchors, deltas), scores, labels, valid

    def _detect(self, boxes, scores, labels, valid, image_size: Tensor):
        """Return the detections of one image among the candidates of all levels."""
        if self.model.bbox_head.bbox_coder.clip_border:
            boxes = clip(boxes, image_size)
        index = indices(valid & is_large(boxes, self.config))
        return self.nms(boxes[index], scores[index], labels[index])
