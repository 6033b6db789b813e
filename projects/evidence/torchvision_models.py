"""torchvision's light detector and segmentor, trained by the configs of mm packages."""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

from mmattn.registry import MODELS

IGNORED = 255  # the label of pixels without a class


def _stack(samples: Sequence[BaseDataElement]) -> Tensor:
    return torch.stack([sample.gt_sem_seg.data[0] for sample in samples]).long()


@MODELS.register_module()
class TorchvisionDetector(BaseModel):
    """Faster R-CNN with an FPN on MobileNetV3, from random weights.

    Args:
        num_classes: number of classes, without the background.
        max_per_img: maximum number of boxes of an image.
        data_preprocessor: the one of mmdetection's detectors.
    """

    def __init__(self, num_classes: int, max_per_img: int, data_preprocessor=None):
        super().__init__(data_preprocessor)
        self.model = fasterrcnn_mobilenet_v3_large_fpn(
            num_classes=num_classes + 1,
            weights_backbone=None,
            box_detections_per_img=max_per_img,
            # The pipeline resizes, and the preprocessor normalizes.
            image_mean=[0.0] * 3,
            image_std=[1.0] * 3,
        )

    def forward(self, inputs: Tensor, data_samples: Sequence, mode: str = 'tensor'):
        """Return losses in mode 'loss', and samples with boxes in mode 'predict'."""
        shape = inputs.shape[-2:]
        self.model.transform.min_size = (min(shape),)
        self.model.transform.max_size = max(shape)
        if mode == 'loss':
            truths = [sample.gt_instances for sample in data_samples]
            return self.model(
                list(inputs),
                [dict(boxes=x.bboxes, labels=x.labels + 1) for x in truths],
            )
        for sample, found in zip(data_samples, self.model(list(inputs)), strict=True):
            scale = found['boxes'].new_tensor(sample.scale_factor).repeat(2)
            sample.pred_instances = InstanceData(
                bboxes=found['boxes'] / scale,
                scores=found['scores'],
                labels=found['labels'] - 1,
            )
        return data_samples


@MODELS.register_module()
class TorchvisionSegmentor(BaseModel):
    """LR-ASPP on MobileNetV3, from random weights.

    Args:
        num_classes: number of classes.
        data_preprocessor: the one of mmsegmentation's segmentors.
    """

    def __init__(self, num_classes: int, data_preprocessor=None):
        super().__init__(data_preprocessor)
        self.model = lraspp_mobilenet_v3_large(
            num_classes=num_classes, weights_backbone=None
        )

    def forward(self, inputs: Tensor, data_samples: Sequence, mode: str = 'tensor'):
        """Return losses in mode 'loss', and samples with maps in mode 'predict'."""
        scores = self.model(inputs)['out']
        if mode == 'loss':
            loss = cross_entropy(scores, _stack(data_samples), ignore_index=IGNORED)
            return dict(loss=loss)
        for sample, each in zip(data_samples, scores, strict=True):
            each = interpolate(each[None], sample.ori_shape, mode='bilinear')
            sample.pred_sem_seg = PixelData(data=each.argmax(1))
        return data_samples
