"""Graphs of Faster, Mask and Cascade R-CNN with post-processing."""

import torch
from mmdet.models.dense_heads import RPNHead
from mmdet.models.roi_heads import CascadeRoIHead, StandardRoIHead
from mmdet.models.roi_heads.bbox_heads import (
    BBoxHead,
    ConvFCBBoxHead,
    Shared2FCBBoxHead,
    Shared4Conv1FCBBoxHead,
)
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from torch import Tensor, nn

from ..errors import ExportError
from .anchors import (
    check_anchors,
    check_boxes,
    class_scores,
    is_large,
    level_anchors,
)
from .nms import EMPTY, NMS, clip, indices, pad, rows, stacked
from .parts import Detector, check_class
from .roi_pool import check_extractor, pool


class RoIDetector(Detector):
    """Detect as `model.predict(..., rescale=False)` of a two-stage detector of mmdet.

    Args:
        model: a detector with mmdet's `RPNHead`, and `StandardRoIHead` or
            `CascadeRoIHead`, with or without masks.

    Raises:
        ExportError: for other models and heads, and for settings of NMS that cannot be
            exported.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        check_class(model.rpn_head, RPNHead)
        check_anchors(model.rpn_head)
        head = model.roi_head
        check_class(head, StandardRoIHead, CascadeRoIHead)
        if head.with_shared_head:
            raise ExportError('`shared_head` cannot be exported')
        self.stages = stages(head.bbox_roi_extractor, head.bbox_head)
        self.mask_stages = []
        if head.with_mask:
            self.mask_stages = stages(head.mask_roi_extractor, head.mask_head)
        for extractor, box_head in self.stages:
            check_extractor(extractor)
            check_box_head(box_head)
        for extractor, mask_head in self.mask_stages:
            check_extractor(extractor)
            check_mask_head(mask_head)
        self.output_names = ('dets', 'labels', *['masks'] * head.with_mask)
        rpn, rcnn = model.rpn_head.test_cfg, head.test_cfg
        self.rpn_nms = NMS(rpn.nms, rpn.max_per_img, 'RPNHead')
        self.nms = NMS(rcnn.nms, rcnn.max_per_img, type(head).__name__)
        self.score_threshold = rcnn.score_thr
        if head.with_mask:
            self.metadata = dict(mask_threshold=rcnn.mask_thr_binary)

    def forward(self, image: Tensor, image_size: Tensor) -> tuple[Tensor, ...]:
        features = self.model.extract_feat(image)
        sizes = image_size.unbind()
        proposals = torch.stack(self._proposals(features, sizes))
        boxes, scores, deltas = self._classify(features, proposals[..., :4], sizes)
        found = []
        for i, size in enumerate(sizes):
            exists = proposals[i, :, 4] > EMPTY
            dets, labels = self._detect(boxes[i], scores[i], deltas[i], exists, size)
            found.append([dets, labels])
            if self.mask_stages:
                maps = [x[i : i + 1] for x in features]
                found[-1].append(self._masks(maps, dets[:, :4], labels))
        return stacked(found, self.nms.limit)

    def _proposals(self, features, sizes) -> list[Tensor]:
        """Return the boxes with scores that the RPN proposes in each image, (P, 5)."""
        maps = self.model.rpn_head(features)
        anchors = level_anchors(self.model.rpn_head, maps[0])
        proposals = []
        for i, size in enumerate(sizes):
            levels = zip(
                *([x[i] for x in level] for level in maps), anchors, strict=True
            )
            candidates = [self._candidates(*level) for level in levels]
            numbers = [
                torch.full_like(scores, number, dtype=torch.long)
                for number, (_, scores) in enumerate(candidates)
            ]
            boxes, scores = map(torch.cat, zip(*candidates, strict=True))
            if self.model.rpn_head.bbox_coder.clip_border:
                boxes = clip(boxes, size)
            index = indices(is_large(boxes, self.model.rpn_head.test_cfg))
            numbers = torch.cat(numbers)[index]
            dets, _ = self.rpn_nms(boxes[index], scores[index], numbers)
            proposals.append(pad(dets, self.rpn_nms.limit))
        return proposals

    def _candidates(self, class_map, delta_map, anchors) -> tuple[Tensor, Tensor]:
        """Return the boxes and scores of a level of one image, at most `nms_pre`."""
        head = self.model.rpn_head
        scores = class_scores(head, class_map)[:, 0]
        nms_pre = head.test_cfg.get('nms_pre', -1)
        count = min(nms_pre, len(scores)) if nms_pre > 0 else len(scores)
        scores, index = scores.topk(count)
        deltas = rows(delta_map, 4)[index]
        # Without `max_shape` the coder does not clip.
        return head.bbox_coder.decode(anchors[index], deltas), scores

    def _classify(self, features, boxes: Tensor, sizes) -> tuple[Tensor, ...]:
        """Return the boxes of the last stage, their class scores and their deltas.

        The boxes are proposals of each image, shape (B, P, 4).
        """
        B, P, _ = boxes.shape
        total = 0
        for stage, (extractor, head) in enumerate(self.stages):
            regions = pool(extractor, features, boxes)
            logits, deltas = head(regions)
            logits, deltas = logits.view(B, P, -1), deltas.view(B, P, -1)
            total = total + logits
            if stage + 1 < len(self.stages):
                labels = logits[..., :-1].argmax(-1)
                each = torch.arange(P, device=boxes.device)
                boxes = [
                    decode(head, boxes[i], deltas[i], size)[each, labels[i]]
                    for i, size in enumerate(sizes)
                ]
                boxes = torch.stack(boxes)
        return boxes, (total / len(self.stages)).softmax(-1), deltas

    def _detect(self, boxes, scores, deltas, exists, image_size):
        """Return the detections of one image among its proposals."""
        scores = scores[:, :-1]
        valid = (scores > self.score_threshold) & exists[:, None]
        proposal, labels = valid.nonzero().unbind(1)
        head = self.stages[-1][1]
        boxes = decode(head, boxes, deltas, image_size)[proposal, labels]
        return self.nms(boxes, scores[proposal, labels], labels)

    def _masks(self, features, boxes: Tensor, labels: Tensor) -> Tensor:
        """Return the mask probabilities of the detections of one image, (K, 28, 28)."""
        total = 0
        for extractor, head in self.mask_stages:
            masks = head(pool(extractor, features, boxes[None])).sigmoid()
            if head.class_agnostic:
                total = total + masks[:, 0]
            else:
                each = torch.arange(boxes.shape[0], device=boxes.device)
                total = total + masks[each, labels]
        # The mean of the stages; empty places stay empty.
        masks = total / len(self.mask_stages)
        return masks.where((labels != EMPTY)[:, None, None], EMPTY)


def stages(extractors, heads) -> list[tuple[nn.Module, nn.Module]]:
    """Return the extractor and the head of each stage."""
    if not isinstance(heads, nn.ModuleList):
        return [(extractors, heads)]
    return list(zip(extractors, heads, strict=True))


def decode(head, boxes: Tensor, deltas: Tensor, image_size: Tensor) -> Tensor:
    """Return the boxes of an image's proposals for each class, shape (P, classes, 4).

    All are decoded before some are chosen, since mmdet's coder needs a fixed number.
    Boxes are (P, 4), and deltas (P, classes * 4), or (P, 4) if they ignore classes.
    """
    boxes = head.bbox_coder.decode(boxes, deltas).view(-1, 4)
    if head.bbox_coder.clip_border:
        boxes = clip(boxes, image_size)
    boxes = boxes.view(deltas.shape[0], -1, 4)
    return boxes.expand(-1, head.num_classes, -1)


def check_box_head(head: nn.Module):
    """Raise an ExportError if a box head cannot be exported."""
    check_class(
        head, BBoxHead, ConvFCBBoxHead, Shared2FCBBoxHead, Shared4Conv1FCBBoxHead
    )
    check_boxes(head)
    if not (head.with_cls and head.with_reg):
        raise ExportError(
            f'{type(head).__name__} can be exported with classes and boxes, got '
            f'with_cls={head.with_cls} and with_reg={head.with_reg}'
        )


def check_mask_head(head: nn.Module):
    """Raise an ExportError if a mask head cannot be exported."""
    check_class(head, FCNMaskHead)
    if head.upsample_method == 'carafe':
        raise ExportError('FCNMaskHead cannot be exported with the upsampling carafe')
