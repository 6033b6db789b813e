"""Graphs of torchvision's detectors with post-processing.

torchvision's own forward cannot be exported: it makes Python numbers of sizes and loops
over what it finds. Its backbones, heads, box coders and poolers are used as they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import (
    AnchorGenerator,
    DefaultBoxGenerator,
)
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.ops import MultiScaleRoIAlign

from .nms import EMPTY, NMS, clip, indices, pad, rows, stacked
from .parts import Detector, check_class

MIN_SIDE = 1e-2  # pixels of a box; a constant in torchvision's RoIHeads
# Any size gives a pooler the strides of its maps.
SIDE = 256


def feature_maps(model: nn.Module, image: Tensor) -> dict[str, Tensor]:
    """Return the maps of the backbone by their names."""
    maps = model.backbone(image)
    return {'0': maps} if isinstance(maps, Tensor) else maps


def grid_anchors(
    generator: AnchorGenerator, image: Tensor, maps: Sequence[Tensor]
) -> list[Tensor]:
    """Return the anchors of each level, shape (N, 4)."""
    H, W = image.shape[-2:]
    sizes = [x.shape[-2:] for x in maps]
    return generator.grid_anchors(sizes, [[H // h, W // w] for h, w in sizes])


class RCNN(Detector):
    """Detect as torchvision's `FasterRCNN` or `MaskRCNN` after its `transform`.

    Raises:
        ExportError: a part of the model is of another class than torchvision's.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        rpn, heads = model.rpn, model.roi_heads
        check_class(rpn, RegionProposalNetwork)
        check_class(heads, RoIHeads)
        check_class(rpn.anchor_generator, AnchorGenerator)
        poolers = [heads.box_roi_pool, *[heads.mask_roi_pool] * heads.has_mask()]
        # The poolers learn the strides from their first maps.
        with torch.no_grad():
            channels = len(model.transform.image_mean)
            maps = feature_maps(model, torch.zeros(1, channels, SIDE, SIDE))
            for pooler in poolers:
                check_class(pooler, MultiScaleRoIAlign)
                pooler(maps, [torch.zeros(0, 4)], [(SIDE, SIDE)])
        settings = dict(iou_threshold=rpn.nms_thresh)
        self.rpn_nms = NMS(settings, rpn.post_nms_top_n(), 'RegionProposalNetwork')
        settings = dict(iou_threshold=heads.nms_thresh)
        self.nms = NMS(settings, heads.detections_per_img, 'RoIHeads')
        if heads.has_mask():
            self.output_names = ('dets', 'labels', 'masks')
            self.metadata = dict(mask_threshold=0.5)

    def forward(self, image: Tensor, image_size: Tensor) -> tuple[Tensor, ...]:
        heads = self.model.roi_heads
        features = feature_maps(self.model, image)
        shapes = [(SIDE, SIDE)] * len(image)  # the poolers know the strides
        proposals = self._proposals(image, features, image_size)
        regions = heads.box_head(heads.box_roi_pool(features, proposals, shapes))
        logits, deltas = heads.box_predictor(regions)
        scores = logits.softmax(-1).chunk(len(image))
        found = [
            self._detect(proposals[i], scores[i], each, image_size[i])
            for i, each in enumerate(deltas.chunk(len(image)))
        ]
        dets, labels = stacked(found, self.nms.limit)
        if not heads.has_mask():
            return dets, labels
        # torchvision's pooler requires a fixed number of boxes, so it takes empty ones.
        boxes = list(dets[..., :4])
        regions = heads.mask_head(heads.mask_roi_pool(features, boxes, shapes))
        masks = heads.mask_predictor(regions).sigmoid()
        masks = masks[torch.arange(len(masks), device=image.device), labels.flatten()]
        masks = masks.unflatten(0, labels.shape)
        return dets, labels, masks.where((labels != EMPTY)[..., None, None], EMPTY)

    def _proposals(self, image, features, image_size) -> list[Tensor]:
        """Return the boxes that the RPN proposes in each image, shape (P, 4)."""
        rpn = self.model.rpn
        maps = list(features.values())
        anchors = grid_anchors(rpn.anchor_generator, image, maps)
        levels = list(zip(*rpn.head(maps), anchors, strict=True))
        proposals = []
        for i, size in enumerate(image_size):
            candidates = []
            for number, (logits, deltas, each) in enumerate(levels):
                scores = rows(logits[i], 1)[:, 0]
                scores, index = scores.topk(min(rpn.pre_nms_top_n(), len(scores)))
                chosen = rows(deltas[i], 4)[index]
                boxes = rpn.box_coder.decode_single(chosen, each[index])
                numbers = torch.full_like(index, number)
                candidates.append((boxes, scores.sigmoid(), numbers))
            boxes, scores, numbers = map(torch.cat, zip(*candidates, strict=True))
            boxes = clip(boxes, size)
            valid = is_large(boxes, rpn.min_size) & (scores >= rpn.score_thresh)
            index = indices(valid)
            dets, _ = self.rpn_nms(boxes[index], scores[index], numbers[index])
            proposals.append(pad(dets[:, :4], self.rpn_nms.limit))
        return proposals

    def _detect(self, proposals, scores, deltas, image_size) -> tuple[Tensor, Tensor]:
        """Return the detections of one image among its proposals."""
        heads = self.model.roi_heads
        boxes = heads.box_coder.decode_single(deltas, proposals)
        boxes = clip(boxes.view(*scores.shape, 4), image_size)
        # Empty places have no area.
        valid = (scores > heads.score_thresh) & is_large(boxes, MIN_SIDE)
        proposal, labels = valid[:, 1:].nonzero().unbind(1)
        labels = labels + 1  # 0 is the background
        return self.nms(boxes[proposal, labels], scores[proposal, labels], labels)


class Dense(Detector):
    """Detect as torchvision's `RetinaNet`, `FCOS` or `SSD` after its `transform`.

    Raises:
        ExportError: a part of the model is of another class than torchvision's.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.name = type(model).__name__
        kind = DefaultBoxGenerator if self.name == 'SSD' else AnchorGenerator
        check_class(model.anchor_generator, kind)
        settings = dict(iou_threshold=model.nms_thresh)
        self.nms = NMS(settings, model.detections_per_img, self.name)

    def forward(self, image: Tensor, image_size: Tensor) -> tuple[Tensor, Tensor]:
        maps = list(feature_maps(self.model, image).values())
        generator, outputs = self.model.anchor_generator, self.model.head(maps)
        scores, deltas = self._scores(outputs), outputs['bbox_regression']
        if self.name == 'SSD':
            # The best candidates are chosen in each class, not on each level.
            anchors = generator(ImageList(image, [image.shape[-2:]]), maps)
        else:
            anchors = grid_anchors(generator, image, maps)
        counts = [len(each) for each in anchors]
        found = []
        for i, size in enumerate(image_size):
            levels = zip(
                scores[i].split(counts), deltas[i].split(counts), anchors, strict=True
            )
            levels = [self._candidates(*level) for level in levels]
            boxes, values, labels = map(torch.cat, zip(*levels, strict=True))
            index = indices(values > self.model.score_thresh)
            boxes = clip(boxes[index], size)
            found.append(self.nms(boxes, values[index], labels[index]))
        return stacked(found, self.nms.limit)

    def _scores(self, outputs: dict[str, Tensor]) -> Tensor:
        """Return the score of each anchor and class, shape (B, N, classes)."""
        logits = outputs['cls_logits']
        if self.name == 'SSD':
            return logits.softmax(-1)
        if self.name == 'FCOS':
            return (logits.sigmoid() * outputs['bbox_ctrness'].sigmoid()).sqrt()
        return logits.sigmoid()

    def _candidates(self, scores, deltas, anchors) -> tuple[Tensor, ...]:
        """Return boxes, scores and labels of the best anchors of one image's level."""
        count, num_classes = self.model.topk_candidates, scores.shape[1]
        if self.name == 'SSD':
            scores, index = scores[:, 1:].topk(min(count, len(scores)), 0)
            labels = torch.arange(1, num_classes, device=scores.device)
            labels = labels.expand_as(scores).flatten()
            scores, index = scores.flatten(), index.flatten()
        else:
            scores = scores.flatten()
            scores, index = scores.topk(min(count, len(scores)))
            labels, index = index % num_classes, index // num_classes
        coder = self.model.box_coder
        decode = coder.decode if self.name == 'FCOS' else coder.decode_single
        return decode(deltas[index], anchors[index]), scores, labels


def is_large(boxes: Tensor, limit: float) -> Tensor:
    """Return whether both sides of boxes (..., 4) have at least so many pixels."""
    return ((boxes[..., 2:] - boxes[..., :2]) >= limit).all(-1)
